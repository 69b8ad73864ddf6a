"""The contract on a real Kafka of three brokers."""

from tests.brokers.contract import BrokerContract

BROKER = "kafka_cluster"


class TestKafkaCluster(BrokerContract):
    """Three brokers with replicated topics keep the contract."""
