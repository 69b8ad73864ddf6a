"""Topics are created and configured; what others set on them is never reset."""

import asyncio
import time

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import (
    BoxConflict,
)
from deadletter.core.box_types import BoxSpec
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import (
    TIMEOUT_S,
)

BROKER = "kafka"


async def test_partitions_only_grow(broker: Broker) -> None:
    name = fresh_name("grow")
    await broker.ensure(BoxSpec(name, 1))
    assert (await broker.ensure(BoxSpec(name, 3))).partitions == 3
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(name, 2))


async def test_configs_that_others_set_are_not_reset(broker: Broker) -> None:
    name = fresh_name("configs")
    await broker.ensure(BoxSpec(name, 1, config={"max.message.bytes": "2000000"}))
    await broker.ensure(BoxSpec(name, 1, retention_ms=86_400_000))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        state = (await broker.describe([name]))[name]
        if (state.retention_ms, state.max_message_bytes) == (86_400_000, 2_000_000):
            break
        assert time.monotonic() < deadline, state
        await asyncio.sleep(0.1)


async def test_the_limit_for_messages_is_raised_and_never_lowered(broker: Broker) -> None:
    name = fresh_name("limit")
    assert (await broker.ensure(BoxSpec(name, 1, min_message_bytes=1_000))).max_message_bytes == 1_048_588
    assert (await broker.ensure(BoxSpec(name, 1, min_message_bytes=2_000_000))).max_message_bytes == 2_000_000
    assert (await broker.ensure(BoxSpec(name, 1, min_message_bytes=1_000_000))).max_message_bytes == 2_000_000
    other = fresh_name("limit")
    assert (await broker.ensure(BoxSpec(other, 1, min_message_bytes=3_000_000))).max_message_bytes == 3_000_000


async def test_a_config_that_the_broker_refuses_is_a_conflict(broker: Broker) -> None:
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(fresh_name("configs"), 1, config={"no.such.config": "1"}))
