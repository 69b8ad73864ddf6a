"""The broker contract on the primary of a Redis with a replica and three Sentinels."""

from tests.brokers.broker_contract import BrokerContract

BROKER = "redis_sentinel"


class TestRedisSentinel(BrokerContract):
    """The contract on a replicated primary."""
