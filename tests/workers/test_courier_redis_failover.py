"""A courier whose Redis master is killed and replaced by a replica, with and without a lost tail."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from deadletter.brokers.connect import open_broker
from tests.brokers.connections import redis_at
from tests.brokers.redis_failover import redis_with_replica
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message, no_secret
from tests.workers.http_service import Received, serving, until

pytestmark = pytest.mark.server

MESSAGES = 400
REPLICATED, TAIL = 30, 10


def is_bad(number: int) -> bool:
    return number % 10 == 3


async def test_a_killed_master_loses_no_message_and_repeats_no_letter(tmp_path: Path):
    delivered: set[int] = set()

    async def answer(request: Received) -> web.Response:
        number = int(request.body)
        await asyncio.sleep(0.02)
        delivered.add(number)
        return web.Response(status=422 if is_bad(number) else 200)

    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secret, LOOPBACK) as broker, serving(answer) as service:
            queue = BrokerQueue(broker, spec, "{failover}.")
            await queue.create()
            await queue.send(*(message(f"{n}", f"k{n % 97}") for n in range(MESSAGES)))
            await failover.until_replicated()
            async with queue.courier(queue.assignment(service.url, delivery={"concurrency": 4})):
                await until(lambda: len(delivered) >= MESSAGES // 4)
                await failover.kill_master()
                await until(lambda: len(delivered) == MESSAGES)
                letters = await queue.until_buried(sum(map(is_bad, range(MESSAGES))))
    counts = Counter(int(one.message.value or b"-1") for one in letters)
    assert counts == {number: 1 for number in range(MESSAGES) if is_bad(number)}


async def test_a_lost_tail_costs_its_messages_and_letters_and_repeats_its_deliveries(tmp_path: Path):
    """What the replica has is delivered again if it was settled in the tail; what was written in the tail is lost."""
    may_answer = asyncio.Event()

    async def answer(request: Received) -> web.Response:
        await may_answer.wait()
        return web.Response(status=422 if is_bad(int(request.body)) else 200)

    async with redis_with_replica(tmp_path) as failover:
        spec = redis_at(failover.url)
        async with open_broker(spec, no_secret, LOOPBACK) as broker, serving(answer) as service:
            queue = BrokerQueue(broker, spec, "{failover}.")
            await queue.create()
            await queue.send(*(message(f"{n}", f"k{n}") for n in range(REPLICATED)))
            async with queue.courier(queue.assignment(service.url, delivery={"concurrency": REPLICATED})):
                await until(lambda: len(service.received) == REPLICATED)
                await failover.until_replicated()
                await failover.stop_replication()
                may_answer.set()
                await queue.send(*(message(f"{n}", f"k{n}") for n in range(REPLICATED, REPLICATED + TAIL)))
                await until(lambda: len(service.received) == REPLICATED + TAIL)
                await queue.until_buried(sum(map(is_bad, range(REPLICATED + TAIL))))
                await failover.kill_master()
                await until(lambda: len(service.received) == 2 * REPLICATED + TAIL)
                letters = await queue.until_buried(sum(map(is_bad, range(REPLICATED))))
    delivered = Counter(int(body) for body in service.bodies)
    assert delivered == {n: 2 if n < REPLICATED else 1 for n in range(REPLICATED + TAIL)}
    assert Counter(int(one.message.value or b"-1") for one in letters) == {3: 1, 13: 1, 23: 1}
