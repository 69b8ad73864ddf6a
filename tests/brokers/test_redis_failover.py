"""Redis workers while a replica is promoted: with and without closed connections, and with a lost tail."""

import asyncio
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.redis import keys
from deadletter.brokers.types import CommitBatch
from deadletter.core.replay_progress import SettledAs
from deadletter.workers.courier.main import CourierProcess
from deadletter.workers.environment import WorkerEnvironment
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.brokers.helpers import make_boxes, numbered_messages, progress_of, publications_to, publish_all, read_all
from tests.brokers.redis_failover import redis_with_replica
from tests.known_faults.faults import wait_until
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import Received, ok, serving, until

pytestmark = pytest.mark.server

HOUR_S = 3_600.0


async def test_a_writer_from_before_a_failover_is_fenced_by_one_after_it(tmp_path: Path) -> None:
    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secrets, LOOPBACK) as old, open_broker(spec, no_secrets, LOOPBACK) as new:
            boxes = await make_boxes(old, "{fence}")
            await publish_all(old, boxes.dead, numbered_messages(10))
            letters = await read_all(old, boxes.dead)
            await failover.until_replicated()
            await failover.stop_replication()
            async with old.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as first:
                await failover.kill_master()
                await wait_until_connected(old)
                async with new.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2"):
                    settled = {SettledAs.Replayed: [one.place.offset for one in letters]}
                    with suppress(Fenced):
                        await first.commit(
                            CommitBatch(progress_of(letters), publications_to(boxes.target, letters), settled)
                        )
            assert await read_all(new, boxes.target) == []


async def wait_until_connected(broker) -> None:
    """Wait until every pooled connection that the failover closed is replaced."""
    is_up = False
    async with asyncio.timeout(60):
        while not is_up:
            with suppress(BrokerError):
                await asyncio.gather(*(broker.server_info() for _ in range(4)))
                is_up = True


async def test_fence_tokens_work_with_the_counter_of_earlier_releases(redis: str) -> None:
    spec = redis_at(redis)
    async with open_broker(spec, no_secrets, LOOPBACK) as broker, Redis.from_url(redis) as client:
        boxes = await make_boxes(broker, "{fence-counter}")
        await publish_all(broker, boxes.dead, numbered_messages(1))
        batch = CommitBatch(progress_of(await read_all(broker, boxes.dead)), [], {})
        fence = keys.fence(boxes.dead)
        counted = await client.incr(fence)
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            assert await client.get(fence) != str(counted).encode()  # the earlier release is fenced
            await writer.commit(batch)
            assert await client.incr(fence) > counted  # the earlier release can take over
            with pytest.raises(Fenced):
                await writer.commit(batch)


async def test_a_courier_continues_after_a_failover_that_leaves_its_connections_open(tmp_path: Path) -> None:
    async def answer(_: Received) -> web.Response:
        await asyncio.sleep(0.02)
        return web.Response()

    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secrets, LOOPBACK) as broker, serving(answer) as service:
            queue = BrokerQueue(broker, spec, f"{{{uuid.uuid4().hex[:10]}}}.")
            await queue.create()
            await queue.send(*(message(f"{n}", f"k{n % 97}") for n in range(800)))
            await failover.until_replicated()
            async with queue.courier(queue.assignment(service.url, delivery={"concurrency": 8})):
                await until(lambda: len(service.received) >= 200)
                await failover.demote_master()
                await wait_until(lambda: len(set(service.bodies)) == 800, 15)
                assert len(set(service.bodies)) == 800


async def test_the_liveness_probe_fails_where_redis_refuses_every_write(tmp_path: Path) -> None:
    later = 0.0
    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secrets, LOOPBACK) as broker, serving(ok) as service:
            queue = BrokerQueue(broker, spec, f"{{{uuid.uuid4().hex[:10]}}}.")
            await queue.create()
            environment = WorkerEnvironment(tmp_path, tmp_path, 0, "pod-0", tmp_path / "termination")
            process = CourierProcess(queue.assignment(service.url), environment, clock=lambda: time.monotonic() + later)
            stop = asyncio.Event()
            work = asyncio.ensure_future(process.run(stop))
            await queue.send(message("first"))
            await until(lambda: bool(service.received))
            process.health.liveness_problem()
            await failover.make_read_only()
            await wait_until(lambda: bool(process.health.liveness_problem()), 3)  # the watchdog sees no progress
            later = HOUR_S
            await wait_until(lambda: bool(process.health.liveness_problem()), 3)
            reported = process.health.liveness_problem()
            stop.set()
            await work
    assert reported
