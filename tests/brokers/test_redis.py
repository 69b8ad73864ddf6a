"""The contract on a real Redis."""

import uuid
from collections.abc import AsyncIterator

import pytest

from deadletter.api.brokerconnections import BrokerConnectionSpec
from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from tests.brokers.contract import BrokerContract

LOOPBACK = ("127.0.0.0/8", "10.0.0.0/8")


def no_secrets(name: str, key: str) -> bytes:
    raise KeyError(name)


def spec_of(url: str) -> BrokerConnectionSpec:
    return BrokerConnectionSpec.model_validate({"redis": {"url": url}})


def fresh_name(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def broker(redis: str) -> AsyncIterator[Broker]:
    async with open_broker(spec_of(redis), no_secrets, LOOPBACK) as opened:
        yield opened


class TestRedis(BrokerContract):
    """Redis keeps the contract."""
