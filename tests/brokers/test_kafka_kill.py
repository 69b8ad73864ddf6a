"""Movers on a real Kafka die at any moment."""

from tests.brokers.killcontract import KillContract

BROKER = "kafka"


class TestKafkaKills(KillContract):
    """Nothing is lost, nothing comes twice."""
