"""Letters that wait in Kafka and fall due together: however many are not kept in memory, a few reads bring them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.contract import Broker
from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.kafka.subscription.subscription import KafkaSubscription
from deadletter.brokers.types import Parked
from deadletter.clock import now_ms
from deadletter.core.letters import Message
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import TIMEOUT_S, Boxes, claim_some, make_boxes, publish_all

BROKER = "kafka"
HOUR = 3_600_000
Span = tuple[int, int]  # first offset and end


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """What was read out of order, span by span; nothing is kept in memory."""
    read, seen = reads.read_records, list[Span]()

    async def read_to(consumer: AIOKafkaConsumer, wanted: Mapping[TopicPartition, Span]) -> AsyncIterator[Any]:
        seen.extend(wanted.values())
        async for records in read(consumer, wanted):
            yield records

    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    monkeypatch.setattr(retry_partition.reading, "read_to", read_to)
    return seen


async def park(desk: KafkaSubscription, boxes: Boxes, hours: list[int]) -> retry_partition.RetryPartition:
    """A letter each that is due in so many hours."""
    claims = await claim_some(desk, len(hours))
    due = [now_ms() + many * HOUR for many in hours]
    await asyncio.gather(*(desk.settle(one, Parked(one.message, at)) for one, at in zip(claims, due, strict=True)))
    async with asyncio.timeout(TIMEOUT_S):
        while desk.parked_letters < len(hours):
            await desk.claim(1)
    work = desk._assignment.partitions[TopicPartition(boxes.retry, 0)]
    assert isinstance(work, retry_partition.RetryPartition)
    return work


async def due(work: retry_partition.RetryPartition, hours: int, limit: int = 1_000) -> list[bytes | None]:
    """Values of the letters that are due when so many hours, and some minutes, have passed."""
    return [claim.message.value for claim in await work.claim_due(now_ms() + hours * HOUR + 600_000, limit, 1 << 30)]


async def test_neighbours_that_fall_due_together_are_read_together(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(300)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as desk:
        work = await park(desk, boxes, [1] * 300)
        assert [*await due(work, 1, 200), *await due(work, 1, 200)] == values
        assert len(spans) == 2


async def test_of_what_lies_between_only_the_wanted_are_taken(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(40)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as desk:
        work = await park(desk, boxes, [1, 2, 3, 4] * 10)
        assert [await due(work, hours) for hours in (1, 2, 3, 4)] == [values[first::4] for first in range(4)]
        assert len(spans) == 4


async def test_what_lies_far_apart_is_not_read_through(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [bytes([n]) * 100_000 for n in range(12)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as desk:
        work = await park(desk, boxes, [1, *[2] * 10, 1])
        assert await due(work, 1) == [values[0], values[11]]
        assert [end - start for start, end in spans] == [1, 1]
