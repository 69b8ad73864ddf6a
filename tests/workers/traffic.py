"""Measure how fast good messages arrive while some messages, or the whole service, fail."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from deadletter.api.worker_config import CourierAssignment
from deadletter.core.letters import Message
from deadletter.workers.courier.courier import Courier
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, Service, serving, until

MAX_RUN_S = 45.0  # several times the longest run that passes


class Source(Protocol):
    """A queue on some broker."""

    def assignment(self, url: str, **more: Any) -> CourierAssignment: ...
    def courier(self, assignment: CourierAssignment) -> AbstractAsyncContextManager[Courier]: ...
    async def publish(self, messages: Sequence[Message], partition: int | None = None) -> None: ...
    async def count_buried(self) -> int: ...


class MemorySource:
    """A queue of three partitions on the memory broker."""

    def __init__(self) -> None:
        self._queue = MemoryQueue(partitions=3)
        self.assignment, self.courier = courier_assignment, self._queue.courier

    async def publish(self, messages: Sequence[Message], partition: int | None = None) -> None:
        self._queue.send(*messages, partition=partition)

    async def count_buried(self) -> int:
        return len(self._queue.buried())


class BrokerSource:
    """A queue on a real broker."""

    def __init__(self, queue: BrokerQueue) -> None:
        self._queue = queue
        self.assignment, self.courier = queue.assignment, queue.courier

    async def publish(self, messages: Sequence[Message], partition: int | None = None) -> None:
        await self._queue.send(*messages, partition=partition)

    async def count_buried(self) -> int:
        return len(await self._queue.buried())


@dataclass
class Outage:
    """An outage: when it begins, in seconds after the first message, and its length; `status` 0 refuses connections.

    `after`: the number of requests that must arrive before it begins.
    """

    at: float
    seconds: float
    status: int = 0
    after: int = 0

    async def happen(self, service: Service) -> None:
        await asyncio.sleep(self.at)
        await until(lambda: len(service.received) >= self.after)
        before = service.answer
        if self.status:
            service.answer = lambda _: web.Response(status=self.status)
        else:
            service.answer = _hang_up  # whoever is connected already
            await service.refuse()
        await asyncio.sleep(self.seconds)
        service.answer = before
        if not self.status:
            await service.listen()


def _hang_up(one: Received) -> web.Response:
    one.hang_up()
    return web.Response()


@dataclass
class Traffic:
    """Messages in sending order, `per_second`; `answer` responds as the service.

    Messages whose body starts with `good` are expected to arrive.
    """

    messages: Sequence[Message]
    per_second: float
    policy: dict[str, Any] = field(default_factory=dict)
    delivery: dict[str, Any] = field(default_factory=dict)
    burst: int = 1  # messages are sent together in groups of this size
    outage: Outage | None = None
    answer: Callable[[Received], web.Response | Awaitable[web.Response]] | None = None

    @property
    def good(self) -> set[bytes]:
        return {one.value for one in self.messages if one.value and one.value.startswith(b"good")}


@dataclass
class Run:
    """The result of a run; `seconds` from the first message until the last good one was accepted."""

    seconds: float
    missing: int
    buried_good: int


def mixed(count: int, bad_of_ten: int, keys: int = 0) -> list[Message]:
    """Return messages of which `bad_of_ten` in ten are bad, spread evenly; with `keys` distinct keys, or one each."""
    names = ("bad" if n * bad_of_ten % 10 < bad_of_ten else "good" for n in range(count))
    return [message(f"{name}-{n}", f"key-{n % keys if keys else n}") for n, name in enumerate(names)]


def by_body(one: Received) -> web.Response:
    """Respond with 500 to bad messages."""
    return web.Response(status=200 if one.body.startswith(b"good") else 500)


async def run(source: Source, traffic: Traffic) -> Run:
    """Send all messages to a courier and wait until every good one was accepted."""
    loop, good, accepted = asyncio.get_running_loop(), traffic.good, set[bytes]()
    answer = traffic.answer or by_body

    async def handle(one: Received) -> web.Response:
        response = answer(one)
        final = await response if asyncio.iscoroutine(response) else response
        assert isinstance(final, web.Response)
        if final.status == 200:
            accepted.add(one.body)
        return final

    async with serving(handle) as service:
        assignment = source.assignment(service.url, policy=traffic.policy, delivery=traffic.delivery)
        async with source.courier(assignment):
            start = loop.time()
            work = [asyncio.ensure_future(_send(source, traffic))]
            if traffic.outage is not None:
                work.append(asyncio.ensure_future(traffic.outage.happen(service)))
            while not good <= accepted and loop.time() - start < MAX_RUN_S:
                await asyncio.sleep(0.01)
            seconds = loop.time() - start
            await asyncio.gather(*work)
            buried = await source.count_buried()
    return Run(seconds, len(good - accepted), buried)


async def _send(source: Source, traffic: Traffic) -> None:
    loop, sent = asyncio.get_running_loop(), 0
    start = loop.time()
    while sent < len(traffic.messages):
        groups = int((loop.time() - start) * traffic.per_second / traffic.burst) + 1
        due = min(groups * traffic.burst, len(traffic.messages))
        if due > sent:
            await source.publish(traffic.messages[sent:due])
            sent = due
        await asyncio.sleep(0.05)
