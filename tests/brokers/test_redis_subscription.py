"""Couriers at a Redis desk that sleep, die, wait, or see their source vanish."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import (
    Fenced,
    GroupOffsetsLost,
)
from deadletter.brokers.redis import committer, leases
from deadletter.brokers.redis.publish import publish
from deadletter.brokers.types import Buried, Claim, Delivered, Parked
from deadletter.core.boxes import BoxStats
from deadletter.core.letters import Message
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import (
    TIMEOUT_S,
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    publish_all,
    settle_all,
    values,
)

BROKER = "redis"


async def test_an_abandoned_message_is_taken_over_and_the_sleeper_is_fenced(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("lease"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription("pod-0")) as sleeper:
        first, second = await claim_some(sleeper, 2)
        await sleeper.settle(second, Parked(second.message, 0))
        (parked,) = await claim_some(sleeper, 1)
        assert parked.parked
        sleeper._background.cancel()  # type: ignore[attr-defined]  # it sleeps: its leases are not prolonged
        await client.xclaim(boxes.source, boxes.group, "pod-0", 0, [first.place.id], idle=leases.LEASE_MS + 1, justid=True)
        await client.zadd(f"{{{boxes.retry}}}.due", {parked.place.id: 0})  # its lease ran out
        async with broker.subscribe(boxes.subscription("pod-1")) as heir:
            taken = await claim_some(heir, 2)
            assert {claim.message.value for claim in taken} == {b"v0", b"v1"}
            for claim in (first, parked):
                with pytest.raises(Fenced):
                    await sleeper.settle(claim, Buried(boxes.dead, claim.message))
                assert not sleeper.holds(claim)
            for claim in taken:
                await heir.settle(claim, Delivered())
    assert await values(broker, boxes.dead) == []


async def test_what_a_killed_courier_held_comes_back_to_its_name_at_once(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("again"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as killed:
        subscription = killed.subscribe(boxes.subscription())
        opened = await subscription.__aenter__()
        claims = await claim_some(opened, 3)
        await opened.settle(claims[0], Parked(claims[0].message, 0))
        assert len(await claim_some(opened, 1)) == 1
        async with broker.subscribe(boxes.subscription()) as again:
            found = await claim_some(again, 3)
            assert {claim.message.value for claim in found} == {b"v0", b"v1", b"v2"}
            for claim in found:
                await again.settle(claim, Delivered())
        await subscription.__aexit__(None, None, None)
    async with broker.subscribe(boxes.subscription()) as again:
        assert await again.claim(1) == []


async def test_a_source_deleted_under_the_desk_is_read_again_when_it_comes_back(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("gone"))
    async with broker.subscribe(boxes.subscription()) as subscription:
        await client.delete(boxes.source)
        deadline = time.monotonic() + TIMEOUT_S
        while not await client.exists(boxes.source):
            assert time.monotonic() < deadline
            assert await subscription.claim(1) == []
        await publish_all(broker, boxes.source, numbered_messages(1))
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Delivered())


async def test_a_group_destroyed_under_the_desk_stops_it(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("destroyed"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 2):
            await subscription.settle(claim, Delivered())
        await publish_all(broker, boxes.source, numbered_messages(1, 2))
        await client.xgroup_destroy(boxes.source, boxes.group)
        for _ in range(2):
            with pytest.raises(GroupOffsetsLost):
                await subscription.claim(1)
        await broker.resume_group(boxes.source, boxes.group, "Earliest")
        assert len(await claim_some(subscription, 3)) == 3


async def test_a_source_made_anew_under_the_desk_is_read_from_its_beginning(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("anew"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription(from_earliest=False)) as subscription:
        await publish_all(broker, boxes.source, numbered_messages(1, 2))
        await settle_all(subscription, await claim_some(subscription, 1))
        async with client.pipeline() as together:
            together.delete(boxes.source)
            together.xadd(boxes.source, {"body": "new"})
            await together.execute()
        (claim,) = await claim_some(subscription, 1)
        assert claim.message.value == b"new"


async def test_a_cancelled_wait_ends(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("cancel"))
    async with broker.subscribe(boxes.subscription()) as subscription:
        for pause in (0.0, 0.01, 0.2):
            waiting = asyncio.create_task(subscription.claim(1))
            await asyncio.sleep(pause)
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=TIMEOUT_S)
            assert waiting.cancelled()
        await publish_all(broker, boxes.source, numbered_messages(1))
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Delivered())


async def test_large_messages_are_read_a_few_at_a_time(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("{large}"))
    await publish_all(broker, boxes.source, [Message(None, bytes(2 << 20)) for _ in range(30)])
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims, waiting = list[Claim](), list[int]()
        async with asyncio.timeout(TIMEOUT_S):
            while len(claims) < 30:
                claims += await subscription.claim(128, 4 << 20)
                waiting.append(sum(claim.message.size for claim in subscription._backlog))  # type: ignore[attr-defined]
        assert max(waiting) <= 8 << 20
        await settle_all(subscription, claims)


async def test_a_letter_in_its_box_is_settled_although_nobody_waits_for_it_any_more(
    broker: Broker, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, cancelled = asyncio.Event(), asyncio.Event()

    async def publish_slowly(*told) -> dict[int, bool]:
        outcomes = await publish(*told)
        published.set()
        await cancelled.wait()
        return outcomes

    monkeypatch.setattr(committer, "publish", publish_slowly)
    boxes = await make_boxes(broker, fresh_name("{leaving}"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        settling = asyncio.ensure_future(subscription.settle(claim, Buried(boxes.dead, claim.message)))
        await published.wait()
        settling.cancel()  # as a courier does whose time to finish is over
        await asyncio.wait({settling})
        cancelled.set()
    assert await values(broker, boxes.dead) == [b"v0"]
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_parked_letters_that_others_deleted_are_counted_and_nothing_waits_for_them(
    broker: Broker, client: Redis
) -> None:
    boxes, monitor = await make_boxes(broker, fresh_name("gone")), broker.monitor()
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, second, third = await claim_some(subscription, 3)
        for claim in (first, second, third):
            await subscription.settle(claim, Parked(claim.message, int(time.time() * 1000) + 2_000))
        assert await lost(monitor, boxes) == 0
        ids = [one for one in await client.hkeys(boxes.retry) if one]
        assert await client.hdel(boxes.retry, *ids[:2]) == 2
        with capture_logs() as logs:
            (left,) = await claim_some(subscription, 1)
        assert (left.parked, subscription.lost_letters, await client.zcard(f"{{{boxes.retry}}}.due")) == (True, 2, 1)
        said = [one for one in logs if one["event"] == "parked letters lost"]
        assert ({one["box"] for one in said}, sum(one["letters"] for one in said)) == ({boxes.retry}, 2)
        await subscription.settle(left, Delivered())
    assert [await lost(monitor, boxes), await lost(monitor, boxes)] == [2, 0]
    assert await lost(broker.monitor(), boxes) == 0, "a new sweep knows only what comes after it"
    await broker.delete([boxes.retry])
    assert await client.keys(f"*{boxes.retry}*") == []


async def lost(monitor: BoxMonitor, boxes: Boxes) -> int:
    found = (await monitor.sweep([boxes.monitored], int(time.time() * 1000)))[boxes.dead]
    assert isinstance(found, BoxStats), found
    return found.lost
