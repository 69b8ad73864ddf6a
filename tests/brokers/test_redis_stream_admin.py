"""Streams and other keys of a queue on Redis: their type, their slot, and their deletion."""

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BoxConflict
from deadletter.brokers.types import Buried, CommitBatch, Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import SettledAs
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import (
    claim_some,
    make_boxes,
    numbered_messages,
    payload,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)

BROKER = "redis"


async def test_a_letter_is_published_once(broker: Broker) -> None:
    name = fresh_name("box")
    await broker.ensure(BoxSpec(name))
    publication = Publication(name, Message(None, b"x"), Place("elsewhere", 3, 17))
    for _ in range(2):
        await broker.publish([publication])
    assert await values(broker, name) == [b"x"]


async def test_a_key_of_another_type_is_a_conflict(broker: Broker, client: Redis) -> None:
    name = fresh_name("list")
    await client.rpush(name, "x")
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(name))


async def test_a_deleted_queue_leaves_no_key(broker: Broker, client: Redis) -> None:
    source = fresh_name("delete")
    boxes = await make_boxes(broker, source)
    await publish_all(broker, boxes.dead, numbered_messages(4))
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        parked = [Publication(boxes.retry, one.message, one.place, due_at=0) for one in letters[:1]]
        settled = {SettledAs.Replayed: offsets[:1], SettledAs.Archived: offsets[1:2]}
        await writer.commit(CommitBatch(progress_of(letters), parked, settled, selected=offsets))
    await broker.delete([boxes.source, boxes.dead, boxes.retry, boxes.ledger, boxes.target])
    assert [key async for key in client.scan_iter(f"*{source}*")] == []


async def test_the_keys_of_a_box_share_a_slot(broker: Broker, client: Redis) -> None:
    for name in (fresh_name("plain"), f"{{{fresh_name('tagged')}}}.billing.dlq"):
        boxes = await make_boxes(broker, name)
        await publish_all(broker, boxes.dead, numbered_messages(1))
        slots = {
            key_slot(key)
            async for key in client.scan_iter(f"*{name.strip('{').split('}')[0]}*dlq*")
            if not key.endswith(b".ledger") and b".retry" not in key
        }
        assert len(slots) == 1


async def test_ten_megabytes_are_preserved_byte_for_byte(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("large"))
    big = Message(b"\xff", bytes(range(256)) * (40 << 10), (("h", b"\xfe"),))
    await publish_all(broker, boxes.source, [big])
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Buried(boxes.dead, claim.message))
    letters = await read_all(broker, boxes.dead)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        settled = {SettledAs.Replayed: [letters[0].place.offset]}
        await writer.commit(CommitBatch(progress_of(letters), publications_to(boxes.target, letters), settled))
    (found,) = await read_all(broker, boxes.target)
    assert payload(letters[0].message) == payload(found.message) == payload(big)
    await broker.delete([boxes.target])
