"""Movers on a real Kafka die at any moment."""

from tests.brokers.kill_contract import KillContract

BROKER = "kafka"


class TestKafkaKills(KillContract):
    """Nothing is lost, nothing comes twice."""
