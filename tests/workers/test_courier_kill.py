"""Courier, service and broker killed at any moment: no message lost, no letter twice, order per key kept."""

import asyncio
import random
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from tests.bed import beds, processes
from tests.bed import kafka as kafka_bed
from tests.bed import redis as redis_bed
from tests.workers import recording_service
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message, no_secret
from tests.workers.http_service import until
from tests.workers.worker_processes import DeliveryLog, Pod, RecordingService

POLICY = {
    "maxAttempts": 20,
    "backoff": {"strategy": "Fixed", "initial": "10ms"},
    "circuitBreaker": {"openFor": "300ms"},
}


class Server:
    """A broker for one test, which keeps its data when it is killed and started again."""

    def __init__(self, bed: beds.Bed, kind: str) -> None:
        self._bed, self._kind = bed, kind
        self._start = kafka_bed.start if kind == "kafka" else redis_bed.start
        self._part = beds.Part(f"killed-{kind}-{uuid.uuid4().hex[:6]}", 2 if kind == "kafka" else 1, self._start)
        self._address = bed.ensure_part(self._part)

    @property
    def spec(self) -> BrokerConnectionSpec:
        where = f"{self._address['address']}:{self._address['ports'][0]}"
        spec = (
            {"kafka": {"bootstrapServers": [where]}}
            if self._kind == "kafka"
            else {"redis": {"url": f"redis://{where}"}}
        )
        return BrokerConnectionSpec.model_validate(spec)

    async def kill(self) -> None:
        """Kill it and start it again."""
        await asyncio.to_thread(self.end)
        address, name = self._address, self._part.name
        await asyncio.to_thread(self._start, self._bed.directory, name, address["address"], *address["ports"])

    def end(self) -> None:
        processes.kill(processes.find_of_bed(self._bed.directory, self._part.name))

    @asynccontextmanager
    async def queue(self, prefix: str) -> AsyncIterator[BrokerQueue]:
        """Open a new connection: the previous one may have ended with the broker."""
        async with open_broker(self.spec, no_secret, allow=LOOPBACK) as broker:
            yield BrokerQueue(broker, self.spec, prefix)


@pytest.fixture(params=["kafka", "redis"])
async def server(request: pytest.FixtureRequest, bed: beds.Bed) -> AsyncIterator[Server]:
    made = await asyncio.to_thread(Server, bed, request.param)
    try:
        yield made
    finally:
        made.end()


async def deliver_through_kills(server: Server, folder: Path, count: int, kills: Counter[str]) -> None:
    """Deliver `count` messages, some bad, some put off, some flaky, with these kills in between."""
    prefix = f"{{{uuid.uuid4().hex[:8]}}}." if server.spec.is_redis else f"{uuid.uuid4().hex[:8]}."
    async with server.queue(prefix) as queue:
        await queue.create()
        for first in range(0, count, 2000):
            numbers = range(first, min(first + 2000, count))
            await queue.send(*(message(f"{number}", f"k{number % 97}") for number in numbers))
    service = RecordingService(folder / "service")
    pod = Pod(folder / "pod", queue.assignment(service.url, policy=POLICY, delivery={"inlineLimit": "5s"}))
    await service.start()
    await pod.start()
    try:
        await _kill_on(
            service.deliveries, count, kills, {"courier": pod.kill, "service": service.kill, "broker": server.kill}
        )
        bad = [number for number in range(count) if recording_service.is_bad(number)]
        await until(lambda: service.deliveries.refresh() == count - len(bad), 300)
        async with server.queue(prefix) as queue:
            await queue.until_buried(len(bad))
        code = await pod.end(signal.SIGTERM)
        assert code == 0, pod.log
        async with server.queue(prefix) as queue:
            letters = Counter(int(taken.message.value or b"") for taken in await queue.buried())
    finally:
        await service.end()
        await pod.end(signal.SIGKILL)
    assert letters == Counter(bad)
    service.deliveries.check_order()
    print(f"{count} messages, {dict(kills)}: {len(service.deliveries.entries)} requests, {len(bad)} letters")


async def _kill_on(
    deliveries: DeliveryLog,
    count: int,
    kills: Counter[str],
    victims: dict[str, Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    order = list(kills.elements())
    random.shuffle(order)
    for turn, victim in enumerate(order):
        wanted = count * (turn + 1) // (len(order) + 2)
        await until(lambda wanted=wanted: deliveries.refresh() >= wanted, 300)
        await asyncio.sleep(random.random() * 0.1)  # anywhere between two steps
        await victims[victim]()


@pytest.mark.timeout(900)
async def test_kills_of_courier_service_and_broker_lose_nothing_and_bury_no_letter_twice(
    server: Server, tmp_path: Path
):
    await deliver_through_kills(server, tmp_path, 3_000, Counter(courier=1, service=1, broker=1))


@pytest.mark.kill
@pytest.mark.timeout(1800)
async def test_many_kills_during_a_hundred_thousand_messages(server: Server, tmp_path: Path):
    await deliver_through_kills(server, tmp_path, 100_000, Counter(courier=8, service=6, broker=4))
