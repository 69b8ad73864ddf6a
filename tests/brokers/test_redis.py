"""The broker contract on a real Redis."""

from tests.brokers.broker_contract import BrokerContract

BROKER = "redis"


class TestRedis(BrokerContract):
    """The contract on Redis."""
