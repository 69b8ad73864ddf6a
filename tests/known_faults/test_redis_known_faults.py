"""Known faults of couriers and replays on Redis."""

import asyncio
import time
import uuid
from pathlib import Path

from aiohttp import web
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.workers.courier.main import CourierProcess, subscription_spec
from deadletter.workers.environment import WorkerEnvironment
from tests.brokers.connections import LOOPBACK, redis_at
from tests.brokers.redis_failover import redis_with_replica
from tests.known_faults.faults import known_fault, wait_until, wait_until_async
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message, no_secret
from tests.workers.http_service import Received, ok, serving, until

HOUR_S = 3_600.0


def fresh_prefix() -> str:
    return f"{{fault-{uuid.uuid4().hex[:10]}}}."


@known_fault("E6-READONLY", "a failover that leaves connections open stops the courier until its pod restarts")
async def test_a_courier_continues_after_a_failover_that_leaves_its_connections_open(tmp_path: Path) -> None:
    async def answer(_: Received) -> web.Response:
        await asyncio.sleep(0.02)
        return web.Response()

    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secret, LOOPBACK) as broker, serving(answer) as service:
            queue = BrokerQueue(broker, spec, fresh_prefix())
            await queue.create()
            await queue.send(*(message(f"{n}", f"k{n % 97}") for n in range(800)))
            await failover.until_replicated()
            async with queue.courier(queue.assignment(service.url, delivery={"concurrency": 8})):
                await until(lambda: len(service.received) >= 200)
                await failover.demote_master()
                await wait_until(lambda: len(set(service.bodies)) == 800, 15)
                assert len(set(service.bodies)) == 800


@known_fault("E6-LIVENESS", "a courier that can claim nothing for an hour answers its liveness probe with ok")
async def test_the_liveness_probe_fails_where_redis_refuses_every_write(tmp_path: Path) -> None:
    later = 0.0
    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secret, LOOPBACK) as broker, serving(ok) as service:
            queue = BrokerQueue(broker, spec, fresh_prefix())
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


@known_fault("E13-CONSUMERS", "consumers of departed pods stay in the group")
async def test_consumers_of_departed_pods_leave_the_group(redis: str) -> None:
    spec = redis_at(redis)
    async with (
        open_broker(spec, no_secret, LOOPBACK) as broker,
        serving(ok) as service,
        Redis.from_url(redis) as client,
    ):
        queue = BrokerQueue(broker, spec, fresh_prefix())
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


@known_fault("E13-LAG", "a lag that Redis does not know is shown as 0")
async def test_a_lag_that_redis_does_not_know_is_not_shown_as_zero(redis: str) -> None:
    spec = redis_at(redis)
    async with (
        open_broker(spec, no_secret, LOOPBACK) as broker,
        serving(ok) as service,
        Redis.from_url(redis) as client,
    ):
        queue = BrokerQueue(broker, spec, fresh_prefix())
        await queue.create()
        assignment = queue.assignment(service.url)
        await queue.send(message("first"))
        async with queue.courier(assignment):
            await until(lambda: bool(service.received))
        await queue.send(*(message(f"{n}", "k") for n in range(20)))
        entries = await client.xrange(queue.prefix + "orders")
        await client.xdel(queue.prefix + "orders", entries[-10][0])  # a gap, so that Redis does not know the lag
        async with broker.subscribe(subscription_spec(assignment, "pod-0")) as subscription:
            assert subscription.lag != 0
