"""The contract on a real Redis."""

from tests.brokers.contract import BrokerContract

BROKER = "redis"


class TestRedis(BrokerContract):
    """Redis keeps the contract."""
