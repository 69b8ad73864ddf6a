"""Recorded attempts on Redis: they are deleted together with tsuccessor message in every case."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis import claim_leases, keys
from deadletter.brokers.redis import subscription as redis_subscription
from deadletter.brokers.types import Delivered
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import TIMEOUT_S, claim_some, make_boxes, numbered_messages, publish_all
from tests.brokers.redis_servers import HERE, own_redis, url_of

BROKER = "redis"
LONG_IDLE_MS = 3_600_000


async def test_attempts_that_could_not_be_written_are_kept_only_while_the_message_is_held(
    broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("attempts"))
    key = keys.notes(boxes.source, boxes.group)
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription()) as subscription:
        done, left = await claim_some(subscription, 2)
        subscription._background.cancel()  # type: ignore[attr-defined]  # this test flushes attempts itself

        async def cut(*_: object) -> None:
            await subscription.settle(done, Delivered())
            raise BrokerUnreachable("the connection was cut while attempts were written")

        for claim in (done, left):
            subscription.record_attempt(claim, 1, 1_700_000_000_000)
        connected, subscription._client = subscription._client, SimpleNamespace(command=cut, run_script=cut)  # type: ignore[attr-defined]
        with pytest.raises(BrokerUnreachable):
            await subscription._flush_attempts()  # type: ignore[attr-defined]
        subscription._client = connected  # type: ignore[attr-defined]
        assert set(subscription._attempts) == {left.place.id}  # type: ignore[attr-defined]
        await subscription._flush_attempts()  # type: ignore[attr-defined]
        assert set(await client.hkeys(key)) == {left.place.id.encode()}
        await subscription.settle(left, Delivered())
    assert not await client.exists(key)


async def test_a_stopped_courier_records_no_attempts_of_a_message_that_was_taken_over(
    broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("attempts"))
    key = keys.notes(boxes.source, boxes.group)
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription("pod-0")) as stopped:
        (claim,) = await claim_some(stopped, 1)
        stopped._background.cancel()  # type: ignore[attr-defined]
        stopped.record_attempt(claim, 1, 1_700_000_000_000)
        await client.xclaim(
            boxes.source, boxes.group, "pod-0", 0, [claim.place.id], idle=claim_leases.LEASE_MS + 1, justid=True
        )
        async with broker.subscribe(boxes.subscription("pod-1")) as successor:
            (taken,) = await claim_some(successor, 1)
            successor.record_attempt(taken, 5, 1_700_000_000_000)
            await successor._flush_attempts()  # type: ignore[attr-defined]
            await stopped._flush_attempts()  # type: ignore[attr-defined]
            assert await client.hvals(key) == [b"5 1700000000000"]
            await successor.settle(taken, Delivered())
    assert not await client.exists(key)


@pytest.mark.parametrize("successor", ["pod-0", "pod-1"])
async def test_attempts_of_a_trimmed_message_are_deleted(broker: Broker, client: Redis, successor: str) -> None:
    boxes = await make_boxes(broker, fresh_name("attempts"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription("pod-0")) as subscription:
        for claim in await claim_some(subscription, 2):
            subscription.record_attempt(claim, 1, 1_700_000_000_000)
    await client.xtrim(boxes.source, maxlen=1, approximate=False)
    async with broker.subscribe(boxes.subscription(successor)) as subscription:
        (left,) = await claim_some(subscription, 1)
        assert (left.message.value, left.attempts) == (b"v1", 1)
        assert (await client.xpending(boxes.source, boxes.group))["pending"] == 1
        await subscription.settle(left, Delivered())
    assert not await client.exists(keys.notes(boxes.source, boxes.group))


async def test_a_lease_is_refreshed_although_attempts_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_subscription, "TICK_S", 0.01)
    with own_redis(tmp_path) as port:
        async with (
            Redis(host=HERE, port=port) as admin,
            open_broker(redis_at(url_of(port)), no_secrets, LOOPBACK) as own,
        ):
            boxes = await make_boxes(own, "orders")
            await publish_all(own, boxes.source, numbered_messages(1))
            async with own.subscribe(boxes.subscription()) as subscription:
                (claim,) = await claim_some(subscription, 1)
                await admin.config_set("maxmemory", "1")
                subscription.record_attempt(claim, 1, 1_700_000_000_000)
                await admin.xclaim(
                    boxes.source, boxes.group, "pod-0", 0, [claim.place.id], idle=LONG_IDLE_MS, justid=True
                )
                async with asyncio.timeout(TIMEOUT_S):
                    while await admin.xpending_range(boxes.source, boxes.group, "-", "+", 1, idle=LONG_IDLE_MS):
                        await asyncio.sleep(0.05)
                await admin.config_set("maxmemory", "0")
