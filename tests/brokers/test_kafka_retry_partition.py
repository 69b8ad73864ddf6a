"""Letters that wait in Kafka and fall due together: however many are not kept in memory, a few reads bring them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import (
    BrokerUnreachable,
)
from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.subscription import KafkaSubscription
from deadletter.brokers.types import Claim, Parked, StoredMessage
from deadletter.clock import now_ms
from deadletter.core.letters import Message
from deadletter.core.replay_progress import SettledAs
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import (
    TIMEOUT_S,
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    publish_all,
    settle_all,
)

BROKER = "kafka"
HOUR = 3_600_000
Span = tuple[int, int]  # first offset and end


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """What was read out of order, span by span; nothing is kept in memory."""
    read, seen = reads.read_records, list[Span]()

    async def read_records(consumer: AIOKafkaConsumer, wanted: Mapping[TopicPartition, Span]) -> AsyncIterator[Any]:
        seen.extend(wanted.values())
        async for records in read(consumer, wanted):
            yield records

    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    monkeypatch.setattr(retry_partition.reads, "read_records", read_records)
    return seen


async def park(subscription: KafkaSubscription, boxes: Boxes, hours: list[int]) -> retry_partition.RetryPartition:
    """A letter each that is due in so many hours."""
    claims = await claim_some(subscription, len(hours))
    due = [now_ms() + many * HOUR for many in hours]
    await asyncio.gather(*(subscription.settle(one, Parked(one.message, at)) for one, at in zip(claims, due, strict=True)))
    async with asyncio.timeout(TIMEOUT_S):
        while subscription.parked_letters < len(hours):
            await subscription.claim(1)
    work = subscription._assignment.partitions[TopicPartition(boxes.retry, 0)]
    assert isinstance(work, retry_partition.RetryPartition)
    return work


async def due(work: retry_partition.RetryPartition, hours: int, limit: int = 1_000) -> list[bytes | None]:
    """Values of the letters that are due when so many hours, and some minutes, have passed."""
    return [claim.message.value for claim in await work.claim_due(now_ms() + hours * HOUR + 600_000, limit, 1 << 30)]


async def test_neighbours_that_fall_due_together_are_read_together(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(300)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        work = await park(subscription, boxes, [1] * 300)
        assert [*await due(work, 1, 200), *await due(work, 1, 200)] == values
        assert len(spans) == 2


async def test_of_what_lies_between_only_the_wanted_are_taken(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(40)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        work = await park(subscription, boxes, [1, 2, 3, 4] * 10)
        assert [await due(work, hours) for hours in (1, 2, 3, 4)] == [values[first::4] for first in range(4)]
        assert len(spans) == 4


async def test_what_lies_far_apart_is_not_read_through(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [bytes([n]) * 100_000 for n in range(12)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        work = await park(subscription, boxes, [1, *[2] * 10, 1])
        assert await due(work, 1) == [values[0], values[11]]
        assert [end - start for start, end in spans] == [1, 1]


async def test_due_letters_of_one_partition_are_not_forgotten_over_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("due"), partitions=2)
    for partition in range(2):
        await publish_all(broker, boxes.source, numbered_messages(1, partition), partition)
    read, asked = RetryPartition._read_letters, list[int]()

    async def failing(self: RetryPartition, offsets: list[int]) -> list[StoredMessage]:
        asked.extend(offsets)
        if len(asked) == 2:
            monkeypatch.undo()
            raise BrokerUnreachable("it went away")
        return await read(self, offsets)

    async with broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 2):
            await subscription.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while subscription.parked_letters < 2:
                await subscription.claim(1)
        for work in subscription._assignment.partitions.values():  # type: ignore[attr-defined]
            work._schedule = [(0, *one[1:]) for one in getattr(work, "_schedule", ())]  # their time has come
        monkeypatch.setattr(RetryPartition, "_read_letters", failing)
        due = list[Claim]()
        with contextlib.suppress(BrokerUnreachable):
            due += await subscription.claim(2)
        due += await claim_some(subscription, 2 - len(due), patience=20)
        assert sorted(claim.message.value or b"" for claim in due) == [b"v0", b"v1"]
        await settle_all(subscription, due)


async def test_a_letter_settled_by_another_is_not_kept(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kept"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while not subscription.parked_letters:
                await subscription.claim(1)
        work = subscription._assignment.partitions[TopicPartition(boxes.retry, 0)]  # type: ignore[attr-defined]
        work._settled.add(SettledAs.Delivered, work._open)
        assert await work.due(now_ms() + 7_200_000, 10, 1 << 20) == []
        assert (len(work._payloads), work._payloads.bytes, len(work._open)) == (0, 0, 0)
