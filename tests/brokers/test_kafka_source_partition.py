"""Unfinished messages that retention or compaction has removed from the source do not hold up the group."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from structlog.testing import capture_logs

from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.kafka.subscription.offset_metadata import NO_ATTEMPTS, encode
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import TIMEOUT_S, Boxes, claim_some, make_boxes, numbered_messages, publish_all, settle_all

BROKER = "kafka"


@pytest.fixture
async def admin(kafka: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client that is not ours."""
    client = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await client.start()
    yield client
    await client.close()


async def until_committed(subscription: Subscription, admin: AIOKafkaAdminClient, boxes: Boxes, offset: int) -> None:
    """Wait until the group has committed this offset."""
    tp, found = TopicPartition(boxes.source, 0), -1
    async with asyncio.timeout(TIMEOUT_S):
        while found != offset:
            assert await subscription.claim(1) == []
            found = (await admin.list_consumer_group_offsets(boxes.group, partitions=[tp]))[tp].offset


@pytest.mark.parametrize("below", [12, 20])
@pytest.mark.parametrize("more", [0, 10])
async def test_unfinished_messages_that_retention_deleted_do_not_hold_up_the_group(
    broker: Broker, admin: AIOKafkaAdminClient, below: int, more: int
) -> None:
    boxes = await make_boxes(broker, fresh_name("deleted"))
    await publish_all(broker, boxes.source, numbered_messages(20))
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 20)
        await settle_all(subscription, [claim for claim in claims if claim.place.offset not in {3, 11}])
    await admin.delete_records({TopicPartition(boxes.source, 0): RecordsToDelete(before_offset=below)})
    await publish_all(broker, boxes.source, numbered_messages(more, 20))
    with capture_logs() as logs:
        async with broker.subscribe(boxes.subscription("pod-1")) as subscription:
            await settle_all(subscription, await claim_some(subscription, more))
            await until_committed(subscription, admin, boxes, 20 + more)
    assert [line["messages"] for line in logs if line["log_level"] == "warning"] == [2]


async def test_unfinished_messages_that_compaction_removed_do_not_hold_up_the_group(
    broker: Broker, kafka: str, admin: AIOKafkaAdminClient
) -> None:
    """A transaction marker looks like the result of compaction: an offset without a message."""
    boxes = await make_boxes(broker, fresh_name("compacted"))
    await publish_with_markers(kafka, boxes.source, 4)
    await commit_offset(kafka, boxes, 1, encode(1, 4, dict.fromkeys((1, 3, 4), NO_ATTEMPTS)))
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 2)
        assert [claim.place.offset for claim in claims] == [4, 6]
        await until_committed(subscription, admin, boxes, 4)
        await settle_all(subscription, claims)
        await until_committed(subscription, admin, boxes, 7)


async def test_missing_messages_stay_finished_after_a_recovery(
    broker: Broker, kafka: str, admin: AIOKafkaAdminClient
) -> None:
    boxes = await make_boxes(broker, fresh_name("again"))
    await publish_with_markers(kafka, boxes.source, 3)
    await commit_offset(kafka, boxes, 1, encode(1, 2, {1: NO_ATTEMPTS}))
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 1)
        partition = subscription._assignment.partitions[TopicPartition(boxes.source, 0)]  # type: ignore[attr-defined]
        await partition._commit(1, encode(1, 2, {1: NO_ATTEMPTS}))  # as if later commits had been lost
        await partition.recover()
        await settle_all(subscription, claims)
        await until_committed(subscription, admin, boxes, 5)


async def publish_with_markers(kafka: str, source: str, count: int) -> None:
    """Publish messages at even offsets, each followed by its marker."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=source)
    await producer.start()
    for number in range(count):
        async with producer.transaction():
            await producer.send_and_wait(source, b"%d" % number, partition=0)
    await producer.stop()


async def commit_offset(kafka: str, boxes: Boxes, offset: int, metadata: str) -> None:
    """Commit offset and metadata as an earlier courier did."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, group_id=boxes.group, enable_auto_commit=False)
    tp = TopicPartition(boxes.source, 0)
    consumer.assign([tp])
    await consumer.start()
    await consumer.commit({tp: (offset, metadata)})
    await consumer.stop()
