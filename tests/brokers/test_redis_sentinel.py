"""The contract on the primary of a real Redis with a replica and three Sentinels."""

from tests.brokers.broker_contract import BrokerContract

BROKER = "redis_sentinel"


class TestRedisSentinel(BrokerContract):
    """A replicated primary keeps the contract."""
