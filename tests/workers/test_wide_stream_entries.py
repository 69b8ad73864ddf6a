"""A stream entry of 20,000 fields through the workers: buried by a courier, archived and replayed by Replays."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.brokers.helpers import numbered_messages, publish_all
from tests.workers.couriers import courier_assignment, running
from tests.workers.http_service import serving, status
from tests.workers.replay_scene import Scene

WITHOUT_BODY = [text for n in range(20_000) for text in (b"f%d" % n, b"v")]
WITH_BODY = [b"body", b"the body", *(text for n in range(19_999) for text in (b"f%d" % n, b"\xff\x00"))]


@pytest.fixture
async def client(redis: str) -> AsyncIterator[Redis]:
    made = Redis.from_url(redis)
    made.response_callbacks.clear()
    yield made
    await made.aclose()


@pytest.fixture
async def scene(redis: str) -> AsyncIterator[Scene]:
    async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker:
        yield await Scene(broker, f"{{wide-{uuid.uuid4().hex[:8]}}}", {"redis": {"url": redis}}).build()


async def entries(client: Redis, stream: str) -> list[list[bytes]]:
    return [fields for _, fields in await client.execute_command("XRANGE", stream, "-", "+")]


def sender_fields(fields: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the fields without our own headers."""
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return sorted(pair for pair in pairs if not pair[0].startswith(b"dlq-"))


async def until_length(client: Redis, stream: str, length: int) -> None:
    async with asyncio.timeout(120):
        while await client.execute_command("XLEN", stream) < length:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("fields", [WITHOUT_BODY, WITH_BODY], ids=["without-body", "with-body"])
async def test_a_wide_entry_is_buried_archived_and_replayed_to_its_origin(
    scene: Scene, client: Redis, fields: list[bytes]
) -> None:
    dead = scene.boxes.dead
    await publish_all(scene.broker, scene.name, numbered_messages(5))
    await client.execute_command("XADD", scene.name, "*", *fields)
    await publish_all(scene.broker, scene.name, numbered_messages(3, 5))
    async with serving(status(422)) as service:
        assignment = courier_assignment(service.url, boxes=scene.boxes.model_dump(), broker=scene.connection)
        async with running(scene.broker, assignment):
            await until_length(client, dead, 9)
            await publish_all(scene.broker, scene.name, numbered_messages(1, 8))
            await until_length(client, dead, 10)
    assert len(service.received) == 10
    buried = await scene.messages(dead)
    assert sorted(one.key for one in buried if one.key) == [b"k%d" % n for n in range(9)]
    assert sender_fields(next(one for one in await entries(client, dead) if b"f7" in one)) == sender_fields(fields)
    await scene.replay("archive", action="Archive")
    assert await client.execute_command("XLEN", dead) == 0
    await client.execute_command("XTRIM", scene.name, "MAXLEN", 0)
    await scene.replay("restore", select={"state": "Archived"})
    found = await entries(client, scene.name)
    assert len(found) == 10
    assert sender_fields(next(one for one in found if b"f7" in one)) == sender_fields(fields)
