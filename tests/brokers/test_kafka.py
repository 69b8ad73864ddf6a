"""The broker contract on a real Kafka."""

from tests.brokers.broker_contract import BrokerContract

BROKER = "kafka"


class TestKafka(BrokerContract):
    """Kafka fulfils the contract."""
