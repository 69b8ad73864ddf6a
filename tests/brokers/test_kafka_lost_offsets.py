"""Offsets that Kafka loses: they expire after the last member left, or disappear with a disk under a live courier."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, GroupOffsetsLost
from deadletter.brokers.types import Claim
from tests.bed import beds, processes
from tests.bed import kafka as kafka_bed
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import claim_some, make_boxes, numbered_messages, publish_all, settle_all

EXPIRING = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n"
START = partial(kafka_bed.start, settings=EXPIRING)
PART = beds.Part("expiring-kafka", 2, START)

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]


class ExpiringKafka:
    """A Kafka for this file alone that keeps the offsets of an empty group for a minute."""

    def __init__(self, bed: beds.Bed) -> None:
        self._bed, self._part = bed, bed.ensure_part(PART)

    @property
    def address(self) -> str:
        return f"{self._part['address']}:{self._part['ports'][0]}"

    def stop(self) -> None:
        processes.stop(processes.find_of_bed(self._bed.directory, PART.name))

    def lose_offsets(self) -> None:
        """Restart the broker with all topics, but without the offsets of groups."""
        self.stop()
        for folder in (self._bed.directory / PART.name / "log").glob("__consumer_offsets-*"):
            shutil.rmtree(folder)
        START(self._bed.directory, PART.name, self._part["address"], *self._part["ports"])


@pytest.fixture(scope="module")
def expiring_kafka(bed: beds.Bed) -> Iterator[ExpiringKafka]:
    started = ExpiringKafka(bed)
    yield started
    started.stop()


@pytest.fixture
async def broker(expiring_kafka: ExpiringKafka) -> AsyncIterator[Broker]:
    async with open_broker(kafka_at(expiring_kafka.address), no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.mark.parametrize("from_earliest", [False, True])
async def test_expired_offsets_stop_the_courier(broker: Broker, from_earliest: bool) -> None:
    boxes = await make_boxes(broker, fresh_name("expired"), partitions=2)
    async with broker.subscribe(boxes.subscription(from_earliest=from_earliest)) as subscription:
        await publish_all(broker, boxes.source, numbered_messages(10), None)
        await settle_all(subscription, await claim_some(subscription, 10))
    await publish_all(broker, boxes.source, numbered_messages(20, 10), None)
    async with asyncio.timeout(300):
        while not await broker.is_group_lost(boxes.source, boxes.group):
            await asyncio.sleep(1)
    with pytest.raises(GroupOffsetsLost):
        async with broker.subscribe(boxes.subscription(from_earliest=from_earliest, has_started=True)):
            pass
    resumed = await broker.resume_group(boxes.source, boxes.group, "Earliest")
    assert resumed is not None
    assert (resumed.skipped_messages, resumed.remaining_messages) == (0, 30)
    async with broker.subscribe(boxes.subscription(from_earliest=from_earliest, has_started=True)) as subscription:
        assert len(await claim_some(subscription, 30)) == 30


async def test_offsets_that_disappear_under_a_live_courier_stop_it(
    broker: Broker, expiring_kafka: ExpiringKafka
) -> None:
    boxes = await make_boxes(broker, fresh_name("emptied"), partitions=2)
    async with broker.subscribe(boxes.subscription()) as subscription:
        await publish_all(broker, boxes.source, numbered_messages(10), None)
        await settle_all(subscription, await claim_some(subscription, 10))
        await asyncio.to_thread(expiring_kafka.lose_offsets)
        await claim_until_lost(subscription)
    assert await broker.is_group_lost(boxes.source, boxes.group)


async def claim_until_lost(subscription) -> None:
    """Claim until the loss is reported; nothing is claimed again before."""
    async with asyncio.timeout(180):
        while True:
            claims: list[Claim] = []
            try:
                claims = await subscription.claim(10)
            except GroupOffsetsLost:
                return
            except BrokerError:
                await asyncio.sleep(0.5)
            assert claims == []
