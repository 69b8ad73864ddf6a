"""Retention of the broker does not delete parked letters; letters that are deleted otherwise are counted as lost."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from structlog.testing import capture_logs

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.kafka.ledger import ledger_partition
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.kafka.subscription.subscription import KafkaSubscription
from deadletter.brokers.types import Delivered, Parked
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.core.letters import Message
from deadletter.plan.desired_boxes import plan_boxes
from deadletter.wall_clock import now_ms
from tests.bed import beds, processes
from tests.bed import kafka as kafka_bed
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import (
    TIMEOUT_S,
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    publish_all,
    settle_all,
)
from tests.plan.builders import connection, delivered_queue

BROKER = "kafka"
HOUR = 3_600_000
SMALL = """\
log.retention.bytes=1048576
log.segment.bytes=1048576
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=500
"""


def start_small(bed: Path, name: str, address: str, port: int, controller: int) -> None:
    kafka_bed.start(bed, name, address, port, controller, settings=SMALL)


PART = beds.Part("small-kafka", 2, start_small)


@pytest.fixture(scope="module")
def small(bed: beds.Bed) -> Iterator[str]:
    """A Kafka that keeps one mebibyte of each partition unless the topic sets another size."""
    part = bed.ensure_part(PART)
    yield f"{part['address']}:{part['ports'][0]}"
    processes.stop(processes.find_of_bed(bed.directory, PART.name))


async def park(subscription: KafkaSubscription, count: int, due_at: int) -> None:
    """Park this many messages of the source, and wait until the subscription has read them from the retry topic."""
    claims = await claim_some(subscription, count)
    await asyncio.gather(*(subscription.settle(one, Parked(one.message, due_at)) for one in claims))
    async with asyncio.timeout(TIMEOUT_S):
        while subscription.parked_letters < count:
            await subscription.claim(1)


async def starts(broker: Broker, *topics: str) -> list[int]:
    return [span.start for topic in topics for span in await broker.window(topic)]


async def wait_for_retention(broker: Broker) -> None:
    """Wait for a complete run of the broker's retention: it has deleted messages of two topics, one after the other."""
    for _ in range(2):
        witness = fresh_name("witness")
        await broker.ensure(BoxSpec(witness, 1))
        for _ in range(5):
            await publish_all(broker, witness, [Message(None, b"x" * 700_000)])
        async with asyncio.timeout(TIMEOUT_S):
            while await starts(broker, witness) == [0]:
                await asyncio.sleep(0.1)


async def test_retention_by_size_deletes_no_letter(small: str) -> None:
    name = fresh_name("size")
    queue = delivered_queue(source={"name": name, "group": "billing"})
    names = queue.boxes(redis=False)
    boxes = Boxes(name, names.dead, names.retry or "", names.ledger, "", "billing")
    async with open_broker(kafka_at(small), no_secrets, LOOPBACK) as broker:
        await broker.ensure(BoxSpec(name, 1, config={"retention.bytes": "-1"}))
        for box in plan_boxes(queue, connection().spec):
            await broker.ensure(BoxSpec(**asdict(box)))
        messages = [Message(b"k%d" % number, b"%d" % number * 150_000) for number in range(40)]
        for first in range(0, 40, 4):
            await publish_all(broker, name, messages[first : first + 4])
            await publish_all(broker, boxes.dead, messages[first : first + 4])
        async with broker.subscribe(boxes.subscription()) as subscription:
            claims, due_at = await claim_some(subscription, 40), now_ms() + HOUR
            await asyncio.gather(*(subscription.settle(one, Parked(one.message, due_at)) for one in claims))
        await wait_for_retention(broker)
        assert await starts(broker, boxes.retry, boxes.dead) == [0, 0]


async def delete(broker: Broker, topic: str, below: int) -> None:
    admin = await broker._kafka.admin_client()  # type: ignore[attr-defined]
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(below)})


async def test_the_courier_counts_and_logs_lost_letters(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    boxes = await make_boxes(broker, fresh_name("gone"))
    await publish_all(broker, boxes.source, numbered_messages(5))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert isinstance(subscription, KafkaSubscription)
        await park(subscription, 5, now_ms() + HOUR)
        partition = subscription._assignment.partitions[TopicPartition(boxes.retry, 0)]
        assert isinstance(partition, retry_partition.RetryPartition)
        await delete(broker, boxes.retry, 3)
        with capture_logs() as logs:
            claims = await partition.claim_due(now_ms() + 2 * HOUR, 100, 1 << 30)
        assert [one.message.value for one in claims] == [b"v3", b"v4"]
        assert subscription.lost_letters == 3
        logged = [one for one in logs if one["event"] == "parked letters lost"]
        assert [(one["topic"], one["partition"], one["letters"]) for one in logged] == [(boxes.retry, 0, 3)]
        assert list(partition._open) == [3, 4], "lost letters do not block the trimming"
        await settle_all(subscription, claims)
        assert subscription.parked_letters == 0


async def test_letters_that_a_successor_settled_and_trimmed_are_not_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    boxes = await make_boxes(broker, fresh_name("taken"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as first:
        assert isinstance(first, KafkaSubscription)
        await park(first, 3, now_ms() + 5_000)
        partition = first._assignment.partitions[TopicPartition(boxes.retry, 0)]
    async with broker.subscribe(boxes.subscription("pod-1")) as second:
        await settle_all(second, await claim_some(second, 3))
        await delete(broker, boxes.retry, 3)
    assert isinstance(partition, retry_partition.RetryPartition)
    assert await partition.claim_due(now_ms(), 100, 1 << 30) == []
    assert first.lost_letters == 0


async def sweep_until(monitor: BoxMonitor, boxes: Boxes, parked: int) -> list[BoxStats]:
    """Sweep until this many letters are parked, and three more times."""
    found: list[BoxStats] = []
    async with asyncio.timeout(TIMEOUT_S):
        while not found or not (found[-1].caught_up and found[-1].parked == parked):
            one = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
            assert isinstance(one, BoxStats), one
            found.append(one)
    for _ in range(3):
        one = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
        assert isinstance(one, BoxStats), one
        found.append(one)
    return found


async def test_the_sweep_counts_letters_that_are_lost_while_no_courier_runs(broker: Broker) -> None:
    boxes, monitor = await make_boxes(broker, fresh_name("swept")), broker.monitor()
    await publish_all(broker, boxes.source, numbered_messages(6))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert isinstance(subscription, KafkaSubscription)
        await park(subscription, 6, now_ms() + HOUR)
    assert [one.lost for one in await sweep_until(monitor, boxes, 6)][-1] == 0
    await delete(broker, boxes.retry, 4)
    assert sum(one.lost for one in await sweep_until(monitor, boxes, 2)) == 4
    assert sum(one.lost for one in await sweep_until(monitor, boxes, 2)) == 0, "once"
    await monitor.close()


async def test_settled_letters_are_not_lost_while_an_open_transaction_hides_their_settlement(broker: Broker) -> None:
    boxes, monitor = await make_boxes(broker, fresh_name("hidden")), broker.monitor()
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert isinstance(subscription, KafkaSubscription)
        await park(subscription, 3, now_ms() + 2_000)
        await sweep_until(monitor, boxes, 3)
        other = await broker._kafka.start_producer(fresh_name("other"))  # type: ignore[attr-defined]
        async with other.transaction():
            await other.send_and_wait(boxes.ledger, b"", key=b"another/1", partition=ledger_partition(0))
            await asyncio.gather(*(subscription.settle(one, Delivered()) for one in await claim_some(subscription, 3)))
            await delete(broker, boxes.retry, 3)
            assert sum(one.lost for one in await sweep_until(monitor, boxes, 0)) == 0
        await other.stop()
    assert sum(one.lost for one in await sweep_until(monitor, boxes, 0)) == 0
    await monitor.close()
