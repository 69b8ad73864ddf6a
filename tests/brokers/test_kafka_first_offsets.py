"""Couriers that start at the same time and far from the broker agree on the first offsets of their group."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import GroupOffsetsLost
from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.subscription import group_offsets
from deadletter.brokers.types import ResumedGroup
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.group_deletion import delete_group
from tests.brokers.helpers import claim_some, make_boxes, numbered_messages, publish_all, settle_all

BROKER = "kafka"
PODS = 20


@pytest.fixture
def slow_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the offsets of the source by a second, in which another courier may open the transactional id."""
    read = group_offsets._start_and_end_offsets

    async def read_later(*arguments: Any) -> tuple[dict[int, int], dict[int, int]]:
        await asyncio.sleep(1.0)
        return await read(*arguments)

    monkeypatch.setattr(group_offsets, "_start_and_end_offsets", read_later)


@pytest.mark.usefixtures("slow_offsets")
async def test_many_couriers_that_start_at_once_do_not_fence_each_other_without_end(broker: Broker, kafka: str) -> None:
    boxes = await make_boxes(broker, fresh_name("first"), partitions=3)
    await publish_all(broker, boxes.source, numbered_messages(5), None)
    async with AsyncExitStack() as pods:
        opened = [pods.enter_async_context(open_broker(kafka_at(kafka), no_secrets, LOOPBACK)) for _ in range(PODS)]
        clients = [one._kafka for one in await asyncio.gather(*opened) if isinstance(one, KafkaBroker)]

        async def start(number: int, client: KafkaClient) -> None:
            await asyncio.sleep(number / PODS)
            await group_offsets.ensure_first_offsets(client, boxes.subscription(from_earliest=False))

        async with asyncio.timeout(90):
            await asyncio.gather(*(start(*one) for one in enumerate(clients)))
    assert not await broker.is_group_lost(boxes.source, boxes.group)


@pytest.mark.usefixtures("slow_offsets")
async def test_couriers_that_wait_for_a_decision_do_not_fence_the_one_that_resumes_the_group(broker: Broker) -> None:
    assert isinstance(broker, KafkaBroker)
    boxes = await make_boxes(broker, fresh_name("first"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        await settle_all(subscription, await claim_some(subscription, 3))
    await delete_group(broker, boxes.source, boxes.group)
    resuming = asyncio.ensure_future(broker.resume_group(boxes.source, boxes.group, "Earliest"))
    lost = 0
    while not resuming.done():
        try:
            await group_offsets.ensure_first_offsets(broker._kafka, boxes.subscription(has_started=True))
        except GroupOffsetsLost:
            lost += 1
    assert await resuming == ResumedGroup(0, 3)
    assert lost
