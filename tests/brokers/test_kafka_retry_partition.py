"""A retry partition: letters that are due together are read with few fetches, and none is forgotten after an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.subscription import KafkaSubscription
from deadletter.brokers.types import Claim, Parked, StoredMessage
from deadletter.core.letters import Message
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
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
    """The spans of letters that were read again, because none is cached."""
    read, recorded = reads.read_records, list[Span]()

    async def read_records(consumer: AIOKafkaConsumer, wanted: Mapping[TopicPartition, Span]) -> AsyncIterator[Any]:
        recorded.extend(wanted.values())
        async for records in read(consumer, wanted):
            yield records

    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    monkeypatch.setattr(retry_partition.reads, "read_records", read_records)
    return recorded


async def park(subscription: KafkaSubscription, boxes: Boxes, hours: list[int]) -> RetryPartition:
    """Park a letter for each number of hours in which it is due."""
    claims = await claim_some(subscription, len(hours))
    due = [now_ms() + number * HOUR for number in hours]
    await asyncio.gather(
        *(subscription.settle(one, Parked(one.message, at)) for one, at in zip(claims, due, strict=True))
    )
    async with asyncio.timeout(TIMEOUT_S):
        while subscription.parked_letters < len(hours):
            await subscription.claim(1)
    partition = subscription._assignment.partitions[TopicPartition(boxes.retry, 0)]
    assert isinstance(partition, RetryPartition)
    return partition


async def due_values(partition: RetryPartition, hours: int, limit: int = 1_000) -> list[bytes | None]:
    """Claim the letters that are due in so many hours and ten minutes."""
    return [
        claim.message.value for claim in await partition.claim_due(now_ms() + hours * HOUR + 600_000, limit, 1 << 30)
    ]


async def test_neighbours_that_are_due_together_are_read_together(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(300)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        partition = await park(subscription, boxes, [1] * 300)
        assert [*await due_values(partition, 1, 200), *await due_values(partition, 1, 200)] == values
        assert len(spans) == 2


async def test_letters_between_the_wanted_ones_are_not_claimed(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [b"%d" % number * 1_000 for number in range(40)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        partition = await park(subscription, boxes, [1, 2, 3, 4] * 10)
        assert [await due_values(partition, hours) for hours in (1, 2, 3, 4)] == [
            values[first::4] for first in range(4)
        ]
        assert len(spans) == 4


async def test_a_large_gap_between_letters_is_not_read(broker: Broker, spans: list[Span]) -> None:
    boxes, values = await make_boxes(broker, fresh_name("due")), [bytes([n]) * 100_000 for n in range(12)]
    await publish_all(broker, boxes.source, [Message(b"k", value) for value in values])
    async with broker.subscribe(boxes.subscription()) as subscription:
        partition = await park(subscription, boxes, [1, *[2] * 10, 1])
        assert await due_values(partition, 1) == [values[0], values[11]]
        assert [end - start for start, end in spans] == [1, 1]


async def test_due_letters_of_one_partition_are_not_forgotten_when_another_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("due"), partitions=2)
    for number in range(2):
        await publish_all(broker, boxes.source, numbered_messages(1, number), number)
    read, offsets_read = RetryPartition._read_letters, list[int]()

    async def failing(self: RetryPartition, offsets: list[int]) -> list[StoredMessage]:
        offsets_read.extend(offsets)
        if len(offsets_read) == 2:
            monkeypatch.undo()
            raise BrokerUnreachable("the broker disconnected")
        return await read(self, offsets)

    async with broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 2):
            await subscription.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while subscription.parked_letters < 2:
                await subscription.claim(1)
        for partition in subscription._assignment.partitions.values():  # type: ignore[attr-defined]
            partition._schedule = [(0, *one[1:]) for one in getattr(partition, "_schedule", ())]  # as if they were due
        monkeypatch.setattr(RetryPartition, "_read_letters", failing)
        due = list[Claim]()
        with contextlib.suppress(BrokerUnreachable):
            due += await subscription.claim(2)
        due += await claim_some(subscription, 2 - len(due), timeout_s=20)
        assert sorted(claim.message.value or b"" for claim in due) == [b"v0", b"v1"]
        await settle_all(subscription, due)


async def test_a_letter_that_another_courier_settled_is_released(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("released"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while not subscription.parked_letters:
                await subscription.claim(1)
        partition = subscription._assignment.partitions[TopicPartition(boxes.retry, 0)]  # type: ignore[attr-defined]
        partition._settled.add(SettledAs.Delivered, partition._open)
        assert await partition.claim_due(now_ms() + 7_200_000, 10, 1 << 20) == []
        assert (len(partition._payloads), partition._payloads.bytes, len(partition._open)) == (0, 0, 0)
