"""Two queues share a consumer group: one starts or is resumed while a courier of the other is a member."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import GroupOffsetsLost
from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.kafka.subscription.group_offsets import ensure_first_offsets
from deadletter.brokers.types import Claim, ResumedGroup
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.group_deletion import delete_offsets
from tests.brokers.helpers import TIMEOUT_S, Boxes, claim_some, make_boxes, numbered_messages, publish_all, settle_all

BROKER = "kafka"
PARTITIONS = 4


@pytest.fixture
async def boxes(broker: Broker) -> AsyncIterator[Boxes]:
    """The boxes of a new queue with a backlog in every partition; its group has a member with another source."""
    other = await make_boxes(broker, fresh_name("at-work"))
    new = replace(await make_boxes(broker, fresh_name("new"), PARTITIONS), group=other.group)
    for partition in range(PARTITIONS):
        await publish_all(broker, new.source, numbered_messages(5), partition)
    async with broker.subscribe(other.subscription("pod-a")):
        yield new


async def test_couriers_that_start_at_once_agree_on_the_first_offsets(broker: Broker, kafka: str, boxes: Boxes) -> None:
    """Each courier has its own connections; every partition starts after the backlog."""
    async with AsyncExitStack() as pods:
        opened = [await pods.enter_async_context(open_broker(kafka_at(kafka), no_secrets, LOOPBACK)) for _ in range(3)]
        desks = [one.subscribe(boxes.subscription(f"pod-{n}", from_earliest=False)) for n, one in enumerate(opened)]
        desks = await asyncio.gather(*(pods.enter_async_context(subscription) for subscription in desks))
        for partition in range(PARTITIONS):
            await publish_all(broker, boxes.source, numbered_messages(1, 100 + partition), partition)
        claims: list[Claim] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len({claim.place for claim in claims}) < PARTITIONS:
                claims += [claim for subscription in desks for claim in await subscription.claim(100)]
    assert {claim.message.value for claim in claims} == {b"v%d" % n for n in range(100, 100 + PARTITIONS)}


async def test_a_courier_killed_after_its_first_commit_leaves_an_offset_of_every_partition(
    broker: Broker, boxes: Boxes
) -> None:
    """Otherwise the next one would take partitions without an offset for new ones and deliver their backlog."""
    assert isinstance(broker, KafkaBroker)
    await ensure_first_offsets(broker._kafka, boxes.subscription(from_earliest=False))
    for partition in range(PARTITIONS):
        await publish_all(broker, boxes.source, numbered_messages(1, 100 + partition), partition)
    async with broker.subscribe(boxes.subscription("pod-1", from_earliest=False)) as subscription:
        claims = await claim_some(subscription, PARTITIONS)
        await settle_all(subscription, claims)
        assert sorted(claim.message.value or b"" for claim in claims) == [b"v%d" % n for n in range(100, 104)]
        assert await subscription.claim(1) == []


async def test_a_source_with_expired_offsets_is_resumed_although_the_group_has_members(
    broker: Broker, boxes: Boxes
) -> None:
    """Kafka deletes the offsets of topics to which no member of a group is subscribed."""
    assert isinstance(broker, KafkaBroker)
    async with broker.subscribe(boxes.subscription("pod-1")) as subscription:
        await settle_all(subscription, await claim_some(subscription, 5 * PARTITIONS))
    await delete_offsets(broker, boxes.source, boxes.group)
    with pytest.raises(GroupOffsetsLost):
        async with broker.subscribe(boxes.subscription("pod-1", has_started=True)):
            pass
    assert await broker.resume_group(boxes.source, boxes.group, "Earliest") == ResumedGroup(0, 5 * PARTITIONS)
    assert not await broker.is_group_lost(boxes.source, boxes.group)
    async with broker.subscribe(boxes.subscription("pod-1", has_started=True)) as subscription:
        assert len(await claim_some(subscription, 5 * PARTITIONS)) == 5 * PARTITIONS
