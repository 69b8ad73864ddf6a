"""Open brokers for the tests of one module, which names its kind: `BROKER = "kafka"` or one of the others below."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets, redis_at

CONNECT = {
    "kafka": kafka_at,
    "redis": redis_at,
    "kafka_cluster": lambda cluster: kafka_at(cluster.bootstrap),
    "redis_sentinel": lambda watched: redis_at(watched.url),
}


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """The bed's broker of the module's kind."""
    kind = request.module.BROKER
    connection = CONNECT[kind](request.getfixturevalue(kind))
    async with open_broker(connection, no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def client(redis: str) -> AsyncIterator[Redis]:
    """Redis itself, past our door."""
    made = Redis.from_url(redis)
    yield made
    await made.aclose()
