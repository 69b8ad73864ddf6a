"""Notes of attempts on Redis: they end with their message, whoever settles it and whatever happens meanwhile."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis import keys, leases
from deadletter.brokers.redis import subscription as desks
from deadletter.brokers.types import Delivered
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import TIMEOUT_S, claim_some, make_boxes, numbered_messages, publish_all
from tests.brokers.redis_servers import HERE, own_redis, url_of

BROKER = "redis"
LONG_AGO = 3_600_000


async def test_a_note_that_could_not_be_written_is_kept_only_while_its_message_is_ours(
    broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("notes"))
    key = keys.notes(boxes.source, boxes.group)
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription()) as subscription:
        done, left = await claim_some(subscription, 2)
        subscription._background.cancel()  # type: ignore[attr-defined]  # we write notes when it suits us

        async def cut(*_: object) -> None:
            await subscription.settle(done, Delivered())
            raise BrokerUnreachable("the line was cut while notes were written")

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


async def test_a_sleeper_writes_no_note_of_what_another_took_over(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("notes"))
    key = keys.notes(boxes.source, boxes.group)
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription("pod-0")) as sleeper:
        (claim,) = await claim_some(sleeper, 1)
        sleeper._background.cancel()  # type: ignore[attr-defined]
        sleeper.record_attempt(claim, 1, 1_700_000_000_000)
        await client.xclaim(boxes.source, boxes.group, "pod-0", 0, [claim.place.id], idle=leases.LEASE_MS + 1, justid=True)
        async with broker.subscribe(boxes.subscription("pod-1")) as heir:
            (taken,) = await claim_some(heir, 1)
            heir.record_attempt(taken, 5, 1_700_000_000_000)
            await heir._flush_attempts()  # type: ignore[attr-defined]
            await sleeper._flush_attempts()  # type: ignore[attr-defined]
            assert await client.hvals(key) == [b"5 1700000000000"]
            await heir.settle(taken, Delivered())
    assert not await client.exists(key)


@pytest.mark.parametrize("heir", ["pod-0", "pod-1"])
async def test_notes_of_a_trimmed_message_go_with_it(broker: Broker, client: Redis, heir: str) -> None:
    boxes = await make_boxes(broker, fresh_name("notes"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription("pod-0")) as subscription:
        for claim in await claim_some(subscription, 2):
            subscription.record_attempt(claim, 1, 1_700_000_000_000)
    await client.xtrim(boxes.source, maxlen=1, approximate=False)
    async with broker.subscribe(boxes.subscription(heir)) as subscription:
        (left,) = await claim_some(subscription, 1)
        assert (left.message.value, left.attempts) == (b"v1", 1)
        assert (await client.xpending(boxes.source, boxes.group))["pending"] == 1
        await subscription.settle(left, Delivered())
    assert not await client.exists(keys.notes(boxes.source, boxes.group))


async def test_a_lease_is_prolonged_although_notes_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "TICK_S", 0.01)
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
                await admin.xclaim(boxes.source, boxes.group, "pod-0", 0, [claim.place.id], idle=LONG_AGO, justid=True)
                async with asyncio.timeout(TIMEOUT_S):
                    while await admin.xpending_range(boxes.source, boxes.group, "-", "+", 1, idle=LONG_AGO):
                        await asyncio.sleep(0.05)
                await admin.config_set("maxmemory", "0")
