"""A courier counts parked letters that others deleted, and continues."""

from typing import Any

import pytest
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.workers import metrics
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until

PARKED = 6


def lost(queue_name: str) -> float:
    return metrics.PARKED_LETTERS_LOST.labels("test", queue_name)._value.get()


async def empty(queue: BrokerQueue) -> None:
    """Delete every letter of the retry box, as an administrator can."""
    broker: Any = queue.broker
    retry = f"{queue.prefix}retry"
    if queue.spec.is_redis:
        ids = [one for one in await broker._client.command("HKEYS", retry) if one]
        await broker._client.command("HDEL", retry, *ids)
        return
    spans = {TopicPartition(retry, one.partition): RecordsToDelete(one.end) for one in await queue.broker.window(retry)}
    await (await broker._kafka.admin_client()).delete_records(spans)


async def test_lost_letters_are_counted_and_later_messages_delivered(
    queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "MAX_CACHED_BYTES", 0)
    queue_name = queue.prefix.strip("{}.")
    await queue.send(*(message(f"bad-{n}", f"k{n}") for n in range(PARKED)))

    def answer(one: Received) -> web.Response:
        return web.Response(status=503 if one.body.startswith(b"bad") else 200)

    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "12s", "max": "12s"}}
    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"}, queue=queue_name)
        async with queue.courier(assignment) as courier:
            await until(lambda: courier._subscription.parked_letters == PARKED)
            await empty(queue)
            await until(lambda: lost(queue_name) == PARKED)
            await until(lambda: courier._subscription.parked_letters == 0)
            await queue.send(message("good", "k0"))
            await until(lambda: b"good" in service.bodies)
    assert len(service.received) == PARKED + 1
    assert await queue.buried() == []
