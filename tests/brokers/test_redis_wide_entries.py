"""Entries of very many fields on Redis: Lua's unpack() is limited to about 8,000 values, an entry is not."""

import asyncio

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BoxRefused
from deadletter.brokers.redis import keys
from deadletter.brokers.types import Buried, Claim, CommitBatch, Delivered, Parked, StoredMessage
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import (
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    settle_all,
    values,
)

BROKER = "redis"
WIDE = 20_000
LAST_ID = "18446744073709551615-18446744073709551614"
Fields = list[bytes]


def wide_entry(count: int, *first: bytes) -> Fields:
    """Return an entry of `count` fields with different names; some values are not text."""
    others = [part for n in range(count - len(first) // 2) for part in (b"f%d" % n, b"\xff%d" % n if first else b"v")]
    return [*first, *others]


WITHOUT_BODY = wide_entry(WIDE)
WITH_BODY = wide_entry(WIDE, b"body", b"the body", b"key", b"k")
SHAPES = pytest.mark.parametrize("fields", [WITHOUT_BODY, WITH_BODY], ids=["without-body", "with-body"])


async def add(client: Redis, stream: str, fields: Fields) -> None:
    await client.execute_command("XADD", stream, "*", *fields)


async def entries(client: Redis, stream: str) -> list[Fields]:
    """Return the fields of every entry as Redis stores them."""
    client.response_callbacks.clear()
    return [fields for _, fields in await client.execute_command("XRANGE", stream, "-", "+")]


def pairs(fields: Fields) -> list[tuple[bytes, bytes]]:
    return sorted(zip(fields[::2], fields[1::2], strict=True))


async def bury_all(broker: Broker, boxes: Boxes, count: int) -> None:
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, count)
        await asyncio.gather(*(subscription.settle(claim, Buried(boxes.dead, claim.message)) for claim in claims))


async def settle(
    broker: Broker, boxes: Boxes, why: SettledAs, letters: list[StoredMessage], to: str, archived: bool = False
) -> None:
    async with broker.partition_writer(
        boxes.dead, boxes.ledger, 0, f"uid-{to}-{why}-{archived}", archived=archived
    ) as writer:
        publications = publications_to(to, letters) if to else []
        await writer.commit(
            CommitBatch(progress_of(letters), publications, {why: [one.place.offset for one in letters]})
        )


@SHAPES
async def test_a_wide_entry_and_its_neighbours_are_buried_once(broker: Broker, client: Redis, fields: Fields) -> None:
    boxes = await make_boxes(broker, fresh_name("{wide}"))
    await publish_all(broker, boxes.source, numbered_messages(5))
    await add(client, boxes.source, fields)
    await publish_all(broker, boxes.source, numbered_messages(3, 5))
    await bury_all(broker, boxes, 9)
    found = [one.message.value for one in await read_all(broker, boxes.dead)]
    assert sorted(value for value in found if value in {b"v%d" % n for n in range(8)}) == [b"v%d" % n for n in range(8)]
    assert len(found) == 9
    assert pairs((await entries(client, boxes.dead))[5]) == pairs(fields)
    await publish_all(broker, boxes.source, numbered_messages(1, 8))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (later,) = await claim_some(subscription, 1)
        assert later.message.value == b"v8"
        await subscription.settle(later, Delivered())
        assert await subscription.claim(1) == []


@SHAPES
async def test_a_wide_entry_is_parked_buried_archived_and_restored_with_its_fields(
    broker: Broker, client: Redis, fields: Fields
) -> None:
    boxes = await make_boxes(broker, fresh_name("{wide}"))
    await add(client, boxes.source, fields)
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Parked(claim.message, now_ms()))
        (due,) = await claim_some(subscription, 1)
        await subscription.settle(due, Buried(boxes.dead, claim.message))
    await settle(broker, boxes, SettledAs.Archived, await read_all(broker, boxes.dead), "")
    assert await read_all(broker, boxes.dead) == []
    archive = [one async for b in broker.read(boxes.dead, await broker.window(boxes.dead, True), True) for one in b]
    await settle(broker, boxes, SettledAs.Replayed, archive, boxes.target, archived=True)
    (found,) = await entries(client, boxes.target)
    assert pairs(found) == pairs(fields)


@SHAPES
async def test_a_wide_letter_of_an_application_is_replayed_with_its_fields(
    broker: Broker, client: Redis, fields: Fields
) -> None:
    boxes = await make_boxes(broker, fresh_name("{wide}"))
    await publish_all(broker, boxes.dead, numbered_messages(2))
    await add(client, boxes.dead, fields)
    letters = await read_all(broker, boxes.dead)
    await settle(broker, boxes, SettledAs.Replayed, letters, boxes.target)
    assert len(await read_all(broker, boxes.target)) == 3
    assert pairs((await entries(client, boxes.target))[2]) == pairs(fields)


@pytest.mark.parametrize("count", [100, 3_995, 3_999, 4_000, 4_001, 7_999, 8_001, 30_000])
async def test_entries_of_every_width_keep_the_order_of_their_fields(broker: Broker, client: Redis, count: int) -> None:
    boxes = await make_boxes(broker, fresh_name("{width}"))
    await add(client, boxes.source, wide_entry(count))
    await bury_all(broker, boxes, 1)
    assert await entries(client, boxes.dead) == [wide_entry(count)]


@pytest.mark.parametrize("first", [(), (b"body", b"b")], ids=["without-body", "with-body"])
async def test_an_entry_with_too_many_fields_is_packed_without_loss(
    broker: Broker, client: Redis, first: tuple[bytes, ...]
) -> None:
    boxes = await make_boxes(broker, fresh_name("{wider}"))
    await add(client, boxes.source, wide_entry(60_000, *first))
    (sent,) = await read_all(broker, boxes.source)
    await bury_all(broker, boxes, 1)
    letters = await read_all(broker, boxes.dead)
    await settle(broker, boxes, SettledAs.Replayed, letters, boxes.target)
    (found,) = await read_all(broker, boxes.target)
    assert (found.message.value, found.message.headers) == (sent.message.value, sent.message.headers)
    assert (await entries(client, boxes.target))[0][0] == b"dlq-headers"


async def test_empty_fields_do_not_exceed_the_limit_of_arguments(broker: Broker, client: Redis) -> None:
    """Redis closes the connection if a command has 1,048,576 arguments."""
    boxes = await make_boxes(broker, fresh_name("{empty}"))
    for _ in range(30):
        await add(client, boxes.source, [b""] * 50_000)
    claims: list[Claim] = []
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 30)
        await asyncio.gather(*(subscription.settle(claim, Buried(boxes.dead, claim.message)) for claim in claims))
    assert await entries(client, boxes.dead) == [[b""] * 50_000] * 30


async def test_a_script_that_fails_half_way_marks_every_published_letter(redis: str, client: Redis) -> None:
    """The stream accepts one more entry: the second XADD of the script fails in each attempt."""
    async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("{half}"))
        await publish_all(broker, boxes.dead, numbered_messages(2))
        letters = await read_all(broker, boxes.dead)
        await client.execute_command("XSETID", boxes.target, LAST_ID)
        for _ in range(2):
            with pytest.raises(BoxRefused):
                await settle(broker, boxes, SettledAs.Replayed, letters, boxes.target)
        assert await values(broker, boxes.target) == [b"v0"]
        assert (
            len(await broker.published_positions(boxes.ledger, f"uid-{boxes.target}-{SettledAs.Replayed}-False")) == 1
        )
        assert await client.zrange(keys.marks(boxes.target), 0, -1) == [f"{boxes.dead}/{letters[0].place.id}".encode()]
        await settle_after_recovery(broker, client, boxes, letters)


async def settle_after_recovery(broker: Broker, client: Redis, boxes: Boxes, letters: list[StoredMessage]) -> None:
    """Check that only missing letters are published after the stream accepts entries again."""
    await client.delete(boxes.target)
    await client.execute_command("XGROUP", "CREATE", boxes.target, "maker", "$", "MKSTREAM")
    await settle(broker, boxes, SettledAs.Replayed, letters, boxes.target)
    assert await values(broker, boxes.target) == [b"v1"]
    assert await read_all(broker, boxes.dead) == []


async def test_a_burial_that_fails_half_way_is_repeated_once_per_letter(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("{half}"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    await client.execute_command("XSETID", boxes.dead, LAST_ID)
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 3)
        outcomes = await asyncio.gather(
            *(subscription.settle(claim, Buried(boxes.dead, claim.message)) for claim in claims), return_exceptions=True
        )
        assert any(isinstance(one, BoxRefused) for one in outcomes)
        await client.delete(boxes.dead)
        await client.execute_command("XGROUP", "CREATE", boxes.dead, "maker", "$", "MKSTREAM")
        again = [claim for claim in claims if subscription.holds(claim)]
        await asyncio.gather(*(subscription.settle(claim, Buried(boxes.dead, claim.message)) for claim in again))
        await settle_all(subscription, [claim for claim in claims if subscription.holds(claim)])
    assert await values(broker, boxes.dead) == [b"v1", b"v2"]
