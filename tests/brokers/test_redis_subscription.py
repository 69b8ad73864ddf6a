"""Subscriptions on Redis: stopped and killed couriers, deleted sources and groups, cancelled calls."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import Fenced, GroupOffsetsLost
from deadletter.brokers.redis import claim_leases, settlement_writer
from deadletter.brokers.redis.publish import publish
from deadletter.brokers.types import Buried, Claim, Delivered, Parked
from deadletter.core.box_types import BoxStats
from deadletter.core.letters import Message
from deadletter.wall_clock import now_ms
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


async def test_a_message_with_an_expired_lease_is_taken_over_and_its_holder_is_fenced(
    broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("lease"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription("pod-0")) as stopped:
        first, second = await claim_some(stopped, 2)
        await stopped.settle(second, Parked(second.message, 0))
        (parked,) = await claim_some(stopped, 1)
        assert parked.parked
        stopped._background.cancel()  # type: ignore[attr-defined]  # so that it does not refresh its leases
        await client.xclaim(
            boxes.source, boxes.group, "pod-0", 0, [first.place.id], idle=claim_leases.LEASE_MS + 1, justid=True
        )
        await client.zadd(f"{{{boxes.retry}}}.due", {parked.place.id: 0})  # its lease has expired
        async with broker.subscribe(boxes.subscription("pod-1")) as successor:
            taken = await claim_some(successor, 2)
            assert {claim.message.value for claim in taken} == {b"v0", b"v1"}
            for claim in (first, parked):
                with pytest.raises(Fenced):
                    await stopped.settle(claim, Buried(boxes.dead, claim.message))
                assert not stopped.holds(claim)
            for claim in taken:
                await successor.settle(claim, Delivered())
    assert await values(broker, boxes.dead) == []


async def test_claims_of_a_killed_courier_return_to_its_successor_of_the_same_name_at_once(
    redis: str, broker: Broker
) -> None:
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


async def test_a_source_that_is_deleted_and_created_again_is_read(broker: Broker, client: Redis) -> None:
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


async def test_a_deleted_group_stops_the_subscription(broker: Broker, client: Redis) -> None:
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


async def test_a_recreated_source_is_read_from_its_beginning(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("recreated"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription(from_earliest=False)) as subscription:
        await publish_all(broker, boxes.source, numbered_messages(1, 2))
        await settle_all(subscription, await claim_some(subscription, 1))
        async with client.pipeline() as transaction:
            transaction.delete(boxes.source)
            transaction.xadd(boxes.source, {"body": "new"})
            await transaction.execute()
        (claim,) = await claim_some(subscription, 1)
        assert claim.message.value == b"new"


async def test_a_claim_can_be_cancelled(broker: Broker) -> None:
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


async def test_large_messages_are_read_in_small_batches(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("{large}"))
    await publish_all(broker, boxes.source, [Message(None, bytes(2 << 20)) for _ in range(30)])
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims, backlogs = list[Claim](), list[int]()
        async with asyncio.timeout(TIMEOUT_S):
            while len(claims) < 30:
                claims += await subscription.claim(128, 4 << 20)
                backlogs.append(sum(claim.message.size for claim in subscription._backlog))  # type: ignore[attr-defined]
        assert max(backlogs) <= 8 << 20
        await settle_all(subscription, claims)


async def test_a_published_letter_is_settled_although_its_caller_was_cancelled(
    broker: Broker, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, cancelled = asyncio.Event(), asyncio.Event()

    async def publish_slowly(*args) -> dict[int, bool]:
        outcomes = await publish(*args)
        published.set()
        await cancelled.wait()
        return outcomes

    monkeypatch.setattr(settlement_writer, "publish", publish_slowly)
    boxes = await make_boxes(broker, fresh_name("{leaving}"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await claim_some(subscription, 1)
        settling = asyncio.ensure_future(subscription.settle(claim, Buried(boxes.dead, claim.message)))
        await published.wait()
        settling.cancel()  # as a courier does at the end of its shutdown timeout
        await asyncio.wait({settling})
        cancelled.set()
    assert await values(broker, boxes.dead) == [b"v0"]
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_parked_letters_that_others_deleted_are_counted_as_lost(broker: Broker, client: Redis) -> None:
    boxes, monitor = await make_boxes(broker, fresh_name("gone")), broker.monitor()
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, second, third = await claim_some(subscription, 3)
        for claim in (first, second, third):
            await subscription.settle(claim, Parked(claim.message, now_ms() + 2_000))
        assert await swept_losses(monitor, boxes) == 0
        ids = [one for one in await client.hkeys(boxes.retry) if one]
        assert await client.hdel(boxes.retry, *ids[:2]) == 2
        with capture_logs() as logs:
            (left,) = await claim_some(subscription, 1)
        assert (left.parked, subscription.lost_letters, await client.zcard(f"{{{boxes.retry}}}.due")) == (True, 2, 1)
        logged = [one for one in logs if one["event"] == "parked letters lost"]
        assert ({one["box"] for one in logged}, sum(one["letters"] for one in logged)) == ({boxes.retry}, 2)
        await subscription.settle(left, Delivered())
    assert [await swept_losses(monitor, boxes), await swept_losses(monitor, boxes)] == [2, 0]
    assert await swept_losses(broker.monitor(), boxes) == 0, "a new monitor counts only losses after its first sweep"
    await broker.delete([boxes.retry])
    assert await client.keys(f"*{boxes.retry}*") == []


async def swept_losses(monitor: BoxMonitor, boxes: Boxes) -> int:
    found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
    assert isinstance(found, BoxStats), found
    return found.lost
