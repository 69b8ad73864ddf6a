"""A courier whose Redis master is killed and replaced by a replica."""

import asyncio
from collections import Counter
from pathlib import Path

from aiohttp import web

from deadletter.brokers.connect import open_broker
from tests.brokers.connections import redis_at
from tests.brokers.redis_failover import redis_with_replica
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message, no_secret
from tests.workers.http_service import Received, serving, until

MESSAGES = 400


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
