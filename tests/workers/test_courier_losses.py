"""A courier whose parked letters are deleted by others counts them and goes on."""

from typing import Any

import pytest
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.workers import metrics
from tests.workers.couriers import QUICK, message
from tests.workers.services import Received, serving, until
from tests.workers.wires import Wire

PARKED = 6


def lost(queue: str) -> float:
    return metrics.PARKED_LETTERS_LOST.labels("test", queue)._value.get()


async def empty(wire: Wire) -> None:
    """Delete every letter of the retry box, as an administrator can."""
    broker: Any = wire.broker
    retry = f"{wire.prefix}retry"
    if wire.spec.is_redis:
        ids = [one for one in await broker._client.command("HKEYS", retry) if one]
        await broker._client.command("HDEL", retry, *ids)
        return
    spans = {TopicPartition(retry, one.partition): RecordsToDelete(one.end) for one in await wire.broker.window(retry)}
    await (await broker._kafka.admin_client()).delete_records(spans)


async def test_lost_letters_are_counted_and_later_messages_delivered(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "KEPT_BYTES", 0)
    queue = wire.prefix.strip("{}.")
    await wire.send(*(message(f"bad-{n}", f"k{n}") for n in range(PARKED)))

    def answer(one: Received) -> web.Response:
        return web.Response(status=503 if one.body.startswith(b"bad") else 200)

    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "12s", "max": "12s"}}
    async with serving(answer) as service:
        told = wire.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"}, queue=queue)
        async with wire.courier(told) as courier:
            await until(lambda: courier._desk.parked == PARKED)
            await empty(wire)
            await until(lambda: lost(queue) == PARKED)
            await until(lambda: courier._desk.parked == 0)
            await wire.send(message("good", "k0"))
            await until(lambda: b"good" in service.bodies)
    assert len(service.received) == PARKED + 1
    assert await wire.buried() == []
