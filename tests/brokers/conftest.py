"""Open brokers for the tests of one module, which names its kind: `BROKER = "kafka"` or `"redis"`."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from tests.brokers.opening import LOOPBACK, kafka_at, no_secrets, redis_at


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """The bed's broker of the module's kind."""
    kind = request.module.BROKER
    at = {"kafka": kafka_at, "redis": redis_at}[kind]
    async with open_broker(at(request.getfixturevalue(kind)), no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def client(redis: str) -> AsyncIterator[Redis]:
    """Redis itself, past our door."""
    made = Redis.from_url(redis)
    yield made
    await made.aclose()
