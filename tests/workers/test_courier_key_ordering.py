"""Order per key through retries, stops, restarts and rebalances."""

import asyncio
from collections import defaultdict
from unittest.mock import patch

from aiohttp import web

from deadletter.brokers.memory.subscription import MemorySubscription
from deadletter.brokers.types import Buried, Claim, Settlement
from tests.workers.couriers import MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, status, until


async def test_order_per_key_is_kept_through_inline_retries():
    failures: dict[bytes, int] = defaultdict(int)

    def flaky(one: Received) -> web.Response:
        failures[one.body] += 1
        return web.Response(status=503 if failures[one.body] < 3 and one.body.endswith(b"0") else 200)

    queue = MemoryQueue()
    queue.send(*(message(f"{n:03d}", f"k{n % 4}") for n in range(100)))
    async with serving(flaky) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    for key in range(4):
        ofkey = [one.body for one in service.received if one.headers["Dlq-Key"] == f"k{key}"]
        first = list(dict.fromkeys(ofkey))
        assert first == sorted(first)
        assert ofkey == sorted(ofkey)  # a retry comes before its successors


async def test_one_in_flight_per_key_and_many_without_order():
    together = {"Key": 0, "None": 0}
    for ordering in together:
        running = 0

        async def slow(_: Received, ordering: str = ordering) -> web.Response:
            nonlocal running
            running += 1
            together[ordering] = max(together[ordering], running)
            await asyncio.sleep(0.02)
            running -= 1
            return web.Response()

        queue = MemoryQueue()
        queue.send(*(message(f"{n}", "same") for n in range(12)))
        async with (
            serving(slow) as service,
            queue.courier(courier_assignment(service.url, delivery={"ordering": ordering})),
        ):
            await until(lambda queue=queue: queue.is_settled)
    assert together["Key"] == 1
    assert together["None"] > 1


async def test_a_stopped_courier_finishes_its_deliveries():
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(_: Received) -> web.Response:
        started.set()
        await gate.wait()
        return web.Response()

    queue = MemoryQueue()
    queue.send(message("one", "k"), message("two", "k"))
    async with serving(slow) as service:
        async with queue.courier(courier_assignment(service.url)):
            await started.wait()
            asyncio.get_running_loop().call_later(0.3, gate.set)
        assert service.bodies == [b"one"]
        async with queue.courier(courier_assignment(service.url)):
            await until(lambda: queue.is_settled)
    assert service.bodies == [b"one", b"two"]


async def test_attempts_are_counted_across_restarts():
    policy = {
        "maxAttempts": 3,
        "backoff": {"strategy": "Fixed", "initial": "20s"},
        "circuitBreaker": {"enabled": False},
    }
    queue = MemoryQueue()
    queue.send(message())
    async with serving(status(503)) as service:
        assignment = courier_assignment(service.url, policy=policy)
        for attempt in (1, 2, 3):
            async with queue.courier(assignment):
                await until(
                    lambda attempt=attempt: len(service.received) == attempt and bool(_is_recorded(queue, attempt))
                )
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3"]
    assert queue.envelopes()[0].attempts == 3


def _is_recorded(queue: MemoryQueue, attempt: int) -> bool:
    notes = queue.server.groups["orders", "billing"].attempts
    return len(queue.buried()) == 1 if attempt == 3 else [one[0] for one in notes.values()] == [attempt]


async def test_claims_lost_by_a_rebalance_are_dropped():
    gate, started = asyncio.Event(), asyncio.Event()

    async def slow(_: Received) -> web.Response:
        started.set()
        await gate.wait()
        return web.Response(status=400)

    queue = MemoryQueue()
    queue.send(*(message(f"{n}", "k") for n in range(3)))
    async with serving(slow) as service, queue.courier(courier_assignment(service.url)):
        await started.wait()
        queue.server.release_claims("orders", "billing", "pod-0")
        gate.set()
        await until(lambda: queue.is_settled)
    assert sorted(one.value or b"" for one in queue.buried()) == [b"0", b"1", b"2"]


async def test_a_letter_being_settled_blocks_neither_its_slot_nor_its_key():
    written, settle = asyncio.Event(), MemorySubscription.settle

    async def slowly(self: MemorySubscription, claim: Claim, settlement: Settlement) -> None:
        if isinstance(settlement, Buried):
            await written.wait()
        await settle(self, claim, settlement)

    queue = MemoryQueue()
    queue.send(*(message(f"bad-{n}", "one-key") for n in range(20)), message("good", "one-key"))
    answer = lambda one: web.Response(status=200 if one.body == b"good" else 422)  # noqa: E731
    with patch.object(MemorySubscription, "settle", slowly):
        async with (
            serving(answer) as service,
            queue.courier(courier_assignment(service.url, delivery={"concurrency": 2})),
        ):
            await until(lambda: b"good" in service.bodies)
            assert not queue.buried()
            written.set()
            await until(lambda: queue.is_settled)
    assert [one.value for one in queue.buried()] == [f"bad-{n}".encode() for n in range(20)]
