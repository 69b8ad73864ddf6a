"""Movers on Kafka are killed, put to sleep and doubled: nothing is lost, nothing comes twice."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from tests.bed import beds, processes
from tests.bed import kafka as kafka_bed
from tests.brokers import kills
from tests.brokers.staging import make_boxes
from tests.brokers.test_kafka import LOOPBACK, fresh_name, no_secrets, spec_of


@pytest.fixture
async def broker(kafka: str) -> AsyncIterator[Broker]:
    async with open_broker(spec_of(kafka), no_secrets, LOOPBACK) as opened:
        yield opened


async def test_a_killed_mover_loses_and_doubles_nothing(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kill"))
    await kills.fill(broker, boxes, 5_000)
    await kills.kill_and_finish("kafka", kafka, boxes, 4, 250, seed=random.randrange(1 << 30))
    await kills.check_exact(broker, boxes, 5_000)
    assert len(await broker.produced(boxes.ledger, "uid-1")) == 5_000


@pytest.mark.kill
@pytest.mark.timeout(1_800)
async def test_twenty_kills_over_a_hundred_thousand_letters(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kill"))
    await kills.fill(broker, boxes, 100_000)
    await kills.kill_and_finish("kafka", kafka, boxes, 20, 1_000, seed=random.randrange(1 << 30))
    await kills.check_exact(broker, boxes, 100_000)


async def test_a_zombie_is_fenced_and_says_so(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("zombie"))
    await kills.fill(broker, boxes, 2_000)
    await kills.stop_and_overtake("kafka", kafka, boxes, 100)
    await kills.check_exact(broker, boxes, 2_000)


async def test_of_two_movers_one_wins(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("two"))
    await kills.fill(broker, boxes, 2_000)
    both = [await kills.start("kafka", kafka, boxes, 100) for _ in range(2)]
    codes = [code for code, _ in await asyncio.gather(*(program.end() for program in both))]
    assert 0 in codes
    assert set(codes) <= {0, kills.FENCED}
    await kills.check_exact(broker, boxes, 2_000)


@pytest.mark.kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hard", [True, False])
async def test_a_bounced_broker_loses_and_doubles_nothing(bed: beds.Bed, hard: bool) -> None:
    """The broker ends in the middle of a replay, three times, by SIGKILL or politely, and comes back."""
    part = beds.Part(f"bounced-kafka-{hard}", 2, kafka_bed.start)
    said = bed.part(part)
    ports = said["ports"]
    address = f"{said['address']}:{ports[0]}"
    async with open_broker(spec_of(address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("bounce"))
        await kills.fill(broker, boxes, 20_000)
        mover = await kills.start("kafka", address, boxes, 250)
        for _ in range(3):
            assert await mover.steps(5)
            (processes.kill if hard else processes.stop)(processes.of_bed(bed.directory, part.name))
            await asyncio.to_thread(kafka_bed.start, bed.directory, part.name, said["address"], *ports)
        code, errors = await mover.end()
        assert code == 0, errors
        await kills.check_exact(broker, boxes, 20_000)
    processes.stop(processes.of_bed(bed.directory, part.name))
