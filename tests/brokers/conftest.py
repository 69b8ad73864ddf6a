"""Open the broker for the tests of one module; the constant `BROKER` of the module names a key of `CONNECT`."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets, redis_at, sentinel_at

CONNECT = {
    "kafka": kafka_at,
    "redis": redis_at,
    "kafka_cluster": lambda cluster: kafka_at(cluster.bootstrap),
    "redis_sentinel": sentinel_at,
}


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """An open broker of the kind that the module names."""
    kind = request.module.BROKER
    connection = CONNECT[kind](request.getfixturevalue(kind))
    async with open_broker(connection, no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def client(redis: str) -> AsyncIterator[Redis]:
    """A plain Redis client, for changes behind the back of the broker."""
    opened = Redis.from_url(redis)
    yield opened
    await opened.aclose()
