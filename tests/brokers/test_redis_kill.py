"""Movers on Redis are killed, put to sleep and doubled: nothing is lost, nothing comes twice."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator

import pytest

from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from tests.brokers import kills
from tests.brokers.staging import make_boxes
from tests.brokers.test_redis import LOOPBACK, fresh_name, no_secrets, spec_of


@pytest.fixture
async def broker(redis: str) -> AsyncIterator[Broker]:
    async with open_broker(spec_of(redis), no_secrets, LOOPBACK) as opened:
        yield opened


async def test_a_killed_mover_loses_and_doubles_nothing(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kill"))
    await kills.fill(broker, boxes, 5_000)
    await kills.kill_and_finish("redis", redis, boxes, 4, 250, seed=random.randrange(1 << 30))
    await kills.check_exact(broker, boxes, 5_000)
    assert len(await broker.produced(boxes.ledger, "uid-1")) == 5_000


@pytest.mark.kill
@pytest.mark.timeout(1_800)
async def test_twenty_kills_over_a_hundred_thousand_letters(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kill"))
    await kills.fill(broker, boxes, 100_000)
    await kills.kill_and_finish("redis", redis, boxes, 20, 1_000, seed=random.randrange(1 << 30))
    await kills.check_exact(broker, boxes, 100_000)


async def test_a_zombie_is_fenced_and_says_so(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("zombie"))
    # A line a letter: more than the pipe takes before somebody reads, so it cannot have finished when it is stopped.
    await kills.fill(broker, boxes, 8_500)
    zombie = await kills.start("redis", redis, boxes, 1)
    try:
        assert await zombie.steps(2)
        zombie.send(signal.SIGSTOP)
        code, errors = await (await kills.start("redis", redis, boxes, 500)).end()
        assert code == 0, errors
    finally:
        zombie.send(signal.SIGCONT)
    code, errors = await zombie.end()
    # One that slept longer than its socket waits does not know what became of its step: it begins anew, in its turn.
    assert (code == kills.FENCED and "fenced" in errors) or (code == 0 and "again" in errors), errors
    await kills.check_exact(broker, boxes, 8_500)


async def test_of_two_movers_one_wins(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("two"))
    await kills.fill(broker, boxes, 2_000)
    both = [await kills.start("redis", redis, boxes, 100) for _ in range(2)]
    codes = [code for code, _ in await asyncio.gather(*(program.end() for program in both))]
    assert 0 in codes
    assert set(codes) <= {0, kills.FENCED}
    await kills.check_exact(broker, boxes, 2_000)
