"""Fixtures of tests with several versions: a real Kafka and a real Redis."""

from collections.abc import AsyncIterator

import pytest

from deadletter.brokers.connect import open_broker
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets, redis_at
from tests.versions.sites import Site


@pytest.fixture(params=["kafka", "redis"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A broker of the test bed, Kafka or Redis, opened by this version."""
    address = request.getfixturevalue(request.param)
    spec = kafka_at(address) if request.param == "kafka" else redis_at(address)
    async with open_broker(spec, no_secrets, LOOPBACK) as broker:
        yield Site(request.param, address, spec, broker)


@pytest.fixture
async def kafka_site(kafka: str) -> AsyncIterator[Site]:
    """The Kafka of the test bed."""
    async with open_broker(kafka_at(kafka), no_secrets, LOOPBACK) as broker:
        yield Site("kafka", kafka, kafka_at(kafka), broker)
