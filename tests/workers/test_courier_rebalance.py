"""Couriers that join and leave: no message is lost and no letter is written twice."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

from aiohttp import web

from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until


async def test_couriers_that_join_and_leave_lose_and_repeat_nothing(queue: BrokerQueue):
    await queue.create(4)
    delivered: set[bytes] = set()

    def answer(one: Received) -> web.Response:
        number = int(one.body)
        if number % 10 == 3:
            return web.Response(status=422)
        if number % 10 == 5 and int(one.headers["Dlq-Attempt"]) < 3:
            return web.Response(status=503)
        delivered.add(one.body)
        return web.Response()

    sent, ended = 0, asyncio.Event()

    async def flow() -> None:
        nonlocal sent
        while not ended.is_set():
            await queue.send(*(message(f"{n}", f"k{n % 50}") for n in range(sent, sent + 20)))
            sent += 20
            await asyncio.sleep(0.05)

    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms"}}
    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "100ms"})
        flowing = asyncio.ensure_future(flow())
        async with queue.courier(assignment, "pod-0"):
            for turn in range(4):
                async with AsyncExitStack() as others:
                    for pod in range(1, 3):
                        await others.enter_async_context(queue.courier(assignment, f"pod-{turn}-{pod}"))
                    await asyncio.sleep(random.random())
            ended.set()
            await flowing
            bad = {f"{n}".encode() for n in range(3, sent, 10)}
            await until(lambda: len(delivered) == sent - len(bad), 120)
            await queue.until_buried(len(bad))
    assert Counter(taken.message.value for taken in await queue.buried()) == Counter(bad)
