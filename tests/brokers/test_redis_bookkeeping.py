"""What Redis keeps about a consumer group: its lag, its consumers and the heartbeats of their pods."""

import uuid
from dataclasses import replace

from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.redis.claim_leases import LEASE_MS
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.departed_consumers import DepartedConsumers
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import worker_key
from deadletter.workers.courier.main import subscription_spec
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.brokers.helpers import Boxes, claim_some, make_boxes, numbered_messages, publish_all, settle_all
from tests.known_faults.faults import wait_until_async
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import ok, serving, until


async def test_a_lag_that_redis_does_not_know_is_not_shown_as_zero(redis: str) -> None:
    spec = redis_at(redis)
    async with (
        open_broker(spec, no_secrets, LOOPBACK) as broker,
        serving(ok) as service,
        Redis.from_url(redis) as client,
    ):
        queue = BrokerQueue(broker, spec, f"{{{uuid.uuid4().hex[:10]}}}.")
        await queue.create()
        assignment = queue.assignment(service.url)
        await queue.send(message("first"))
        async with queue.courier(assignment):
            await until(lambda: bool(service.received))
        await queue.send(*(message(f"{n}", "k") for n in range(20)))
        entries = await client.xrange(queue.prefix + "orders")
        await client.xdel(queue.prefix + "orders", entries[-10][0])  # a gap, so that Redis does not know the lag
        async with broker.subscribe(subscription_spec(assignment, "pod-0")) as subscription:
            assert subscription.lag is None


async def test_consumers_of_departed_pods_leave_the_group(redis: str) -> None:
    spec = redis_at(redis)
    async with (
        open_broker(spec, no_secrets, LOOPBACK) as broker,
        serving(ok) as service,
        Redis.from_url(redis) as client,
    ):
        queue = BrokerQueue(broker, spec, f"{{{uuid.uuid4().hex[:10]}}}.")
        await queue.create()
        assignment = queue.assignment(service.url)
        async with queue.courier(assignment, "stays"):
            for n in range(3):
                async with queue.courier(assignment, f"departs-{n}"):
                    await queue.send(message(f"{n}", "k"))
                    await until(lambda n=n: len(service.received) > n)

            async def departed() -> list[bytes]:
                consumers = await client.xinfo_consumers(queue.prefix + "orders", assignment.group)
                return [one["name"] for one in consumers if one["name"].startswith(b"departs")]

            async def is_clean() -> bool:
                return not await departed()

            await wait_until_async(is_clean, 6)
            assert await departed() == []


async def test_idle_consumers_leave_only_without_pending_messages_and_heartbeats_only_unchanged(
    client: Redis, redis: str
) -> None:
    async with (
        open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker,
        Redis.from_url(redis, protocol=2) as driver,
    ):
        own = RedisClient(driver)
        boxes = await make_boxes(broker, f"{{{uuid.uuid4().hex[:10]}}}")
        await publish_all(broker, boxes.source, numbered_messages(1))
        statuses = {name: WorkerStatus(name, "Closed", "", "", 0, 1) for name in ("holds", "idle", "alive")}
        await client.xgroup_create(boxes.source, boxes.group, "0")
        await client.xreadgroup(boxes.group, "holds", {boxes.source: ">"}, count=1)
        await client.xgroup_createconsumer(boxes.source, boxes.group, "idle")
        for name, status in statuses.items():
            await broker.report_status(boxes.dead, boxes.ledger, name, status)
        departed = DepartedConsumers(own, boxes.subscription("cleaner"))
        await departed.remove()
        assert await consumers_of(client, boxes) == {b"holds", b"idle"}  # not idle for an hour
        await broker.report_status(boxes.dead, boxes.ledger, "alive", replace(statuses["alive"], at=2))
        await departed.remove(min_idle_ms=0)
        assert await consumers_of(client, boxes) == {b"holds"}
        assert set(await client.hgetall(boxes.ledger)) == {worker_key("alive")}
        async with broker.subscribe(boxes.subscription("taker")) as subscription:
            await client.xclaim(boxes.source, boxes.group, "holds", 0, await pending_ids(client, boxes), idle=LEASE_MS)
            claims = await claim_some(subscription, 1)
            await departed.remove(min_idle_ms=0)
            assert await consumers_of(client, boxes) == {b"taker"}
            await settle_all(subscription, claims)
        assert await consumers_of(client, boxes) == set()


async def consumers_of(client: Redis, boxes: Boxes) -> set[bytes]:
    return {one["name"] for one in await client.xinfo_consumers(boxes.source, boxes.group)}


async def pending_ids(client: Redis, boxes: Boxes) -> list[bytes]:
    pending = await client.xpending_range(boxes.source, boxes.group, "-", "+", 10)
    return [one["message_id"] for one in pending]
