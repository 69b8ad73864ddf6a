"""Partition writers on a real Kafka are killed at any moment."""

from tests.brokers.kill_contract import KillContract

BROKER = "kafka"


class TestKafkaKills(KillContract):
    """Kafka fulfils the kill contract."""
