"""Faults of Redis: lost replies, a silent server, no memory left, trimmed entries, a corrupt ledger."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BoxRefused, BrokerUnreachable, Fenced, LedgerCorrupt
from deadletter.brokers.types import Buried, CommitBatch, Delivered
from deadletter.core.letters import Message
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import (
    TIMEOUT_S,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)
from tests.brokers.redis_servers import HERE, cutting_proxy, own_redis, url_of

BROKER = "redis"


async def test_a_lost_reply_to_a_publication_duplicates_nothing(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("lost"))
    await publish_all(broker, boxes.dead, numbered_messages(20))
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    batch = CommitBatch(
        progress_of(letters, replayed=20), publications_to(boxes.target, letters), {SettledAs.Replayed: offsets}
    )
    async with (
        cutting_proxy(urlsplit(redis).netloc) as proxy,
        open_broker(redis_at(url_of(proxy.port)), no_secrets, LOOPBACK) as unreliable,
    ):
        async with unreliable.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            proxy.lose_reply_to(b"fence")
            with pytest.raises(BrokerUnreachable):
                await writer.commit(batch)
            assert proxy.lost_replies == 1
            with pytest.raises(Fenced):
                await writer.commit(batch)  # its last commit failed
        assert len(await read_all(broker, boxes.target)) == 20  # only the reply was lost
        async with unreliable.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            assert writer.progress is None
            await writer.commit(batch)
    assert await values(broker, boxes.target) == [m.value for m in numbered_messages(20)]
    assert await read_all(broker, boxes.dead) == []
    assert len(await broker.published_positions(boxes.ledger, "uid-1")) == 20


async def test_a_lost_reply_to_a_burial_duplicates_nothing(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("lost"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with (
        cutting_proxy(urlsplit(redis).netloc) as proxy,
        open_broker(redis_at(url_of(proxy.port)), no_secrets, LOOPBACK) as unreliable,
        unreliable.subscribe(boxes.subscription()) as subscription,
    ):
        (claim,) = await claim_some(subscription, 1)
        proxy.lose_reply_to(b"claim")
        with pytest.raises(BrokerUnreachable):
            await subscription.settle(claim, Buried(boxes.dead, claim.message))
        assert subscription.holds(claim)
        await subscription.settle(claim, Buried(boxes.dead, claim.message))
    assert await values(broker, boxes.dead) == [b"v0"]


async def test_a_server_out_of_memory_loses_nothing(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        admin = Redis(host=HERE, port=port)
        async with open_broker(redis_at(url_of(port)), no_secrets, LOOPBACK) as broker:
            boxes = await make_boxes(broker, "orders")
            await publish_all(broker, boxes.source, numbered_messages(1))
            async with broker.subscribe(boxes.subscription()) as subscription:
                (claim,) = await claim_some(subscription, 1)
                await admin.config_set("maxmemory", "1")
                with pytest.raises(BoxRefused):
                    await subscription.settle(claim, Buried(boxes.dead, claim.message))
                assert subscription.holds(claim)
                await admin.config_set("maxmemory", "0")
                await subscription.settle(claim, Buried(boxes.dead, claim.message))
            assert await values(broker, boxes.dead) == [b"v0"]
        await admin.aclose()


async def test_trimmed_messages_are_acknowledged(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("trim"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert len(await claim_some(subscription, 3)) == 3
    await client.xtrim(boxes.source, maxlen=1, approximate=False)
    async with broker.subscribe(boxes.subscription()) as subscription:
        (left,) = await claim_some(subscription, 1)
        assert left.message.value == b"v2"
        assert (await client.xpending(boxes.source, boxes.group))["pending"] == 1
        await subscription.settle(left, Delivered())
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_a_silent_server_is_unreachable_and_its_calls_can_be_cancelled(redis: str) -> None:
    async with (
        cutting_proxy(urlsplit(redis).netloc) as proxy,
        open_broker(redis_at(url_of(proxy.port)), no_secrets, LOOPBACK) as broker,
    ):
        await broker.server_info()
        proxy.silent = True
        waiting = asyncio.create_task(broker.server_info())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=TIMEOUT_S)
        assert waiting.cancelled()
        with pytest.raises(BrokerUnreachable):
            await broker.server_info()
        proxy.silent = False
        assert (await broker.server_info()).kind == "Redis"


async def test_a_corrupt_ledger_is_reported_and_not_taken_for_empty(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("corrupt"))
    await client.hset(boxes.ledger, "tally/uid-1/0", b"\x01nonsense")
    with pytest.raises(LedgerCorrupt):
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1"):
            pass
    monitor = broker.monitor()
    assert isinstance((await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead], LedgerCorrupt)


async def test_a_large_batch_is_archived_without_being_in_memory_twice(tmp_path: Path) -> None:
    count, size = 4_000, 5_000
    with own_redis(tmp_path) as port:
        async with (
            Redis(host=HERE, port=port) as admin,
            open_broker(redis_at(url_of(port)), no_secrets, LOOPBACK) as broker,
        ):
            boxes = await make_boxes(broker, "orders")
            await publish_all(broker, boxes.dead, [Message(None, n.to_bytes(size)) for n in range(count)])
            letters = await read_all(broker, boxes.dead)
            used = (await admin.info("memory"))["used_memory"]
            async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
                settled = {SettledAs.Archived: [one.place.offset for one in letters]}
                await writer.commit(CommitBatch(progress_of(letters, archived=count), settled=settled))
            assert (await admin.info("memory"))["used_memory_peak"] < used + count * size // 2
            assert await read_all(broker, boxes.dead) == []
            spans = await broker.window(boxes.dead, archived=True)
            archived = [
                one.message.value async for batch in broker.read(boxes.dead, spans, archived=True) for one in batch
            ]
            assert archived == [one.message.value for one in letters]
