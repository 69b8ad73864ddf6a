"""A courier whose clock is wrong, or stepped while it works, waits as long as configured and loses no message."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from deadletter.api.worker_config import CourierAssignment
from deadletter.wall_clock import monotonic_ms, now_ms
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.main import delivery_for, subscription_spec
from tests.helpers.headers import read_own_envelope
from tests.shifted_clock import shifted_clock
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message, no_secret
from tests.workers.http_service import Received, serving, until
from tests.workers.worker_processes import Pod

WAIT_S = 3
HOUR_MS = 3_600_000
POLICY = {"maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "10ms"}}


@pytest.mark.parametrize("minutes", [-5, 5])
async def test_a_skewed_clock_shortens_no_backoff_and_loses_no_message(
    queue: BrokerQueue, tmp_path: Path, minutes: int
):
    seen: dict[str, list[float]] = {}

    def answer(request: Received) -> web.Response:
        times = seen.setdefault(request.body.decode(), [])
        times.append(time.monotonic())
        if request.body == b"bad":
            return web.Response(status=422)
        later = {"Retry-After": str(WAIT_S)}
        return web.Response(status=200) if len(times) > 1 else web.Response(status=429, headers=later)

    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy=POLICY, delivery={"inlineLimit": "100ms"})
        pod = Pod(tmp_path / "pod", assignment, **shifted_clock(minutes))
        await pod.start()
        try:
            await queue.send(*(message(f"{number}", f"k{number}") for number in range(10)), message("bad", "k"))
            await until(lambda: len(seen) == 11 and all(len(times) == 2 for key, times in seen.items() if key != "bad"))
            (letter,) = await queue.until_buried(1)
            code = await pod.end(signal.SIGTERM)
            assert code == 0, pod.log
        finally:
            await pod.end(signal.SIGKILL)
    waits = [times[1] - times[0] for key, times in seen.items() if key != "bad"]
    assert min(waits) >= WAIT_S
    envelope = read_own_envelope(letter.message)
    assert envelope is not None
    assert envelope.attempts == 1


class SteppedClock:
    """A wall clock that a test steps."""

    def __init__(self) -> None:
        self.step_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.step_ms


@asynccontextmanager
async def courier_with_clock(
    queue: MemoryQueue, assignment: CourierAssignment, clock: SteppedClock
) -> AsyncIterator[Courier]:
    """Run a courier with this wall clock while the block runs."""
    delivery, stop = delivery_for(assignment, no_secret), asyncio.Event()
    async with queue.broker.subscribe(subscription_spec(assignment, "pod-0")) as subscription:
        courier = Courier(assignment, subscription, delivery, clock=clock)
        run = asyncio.ensure_future(courier.run(stop))
        try:
            yield courier
        finally:
            stop.set()
            await run
            await delivery.close()


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_a_stepped_clock_does_not_keep_the_circuit_open(step_ms: int):
    is_up, clock, queue = False, SteppedClock(), MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(30)))
    policy = {
        "maxAttempts": 1_000,
        "backoff": {"strategy": "Fixed", "initial": "50ms"},
        "circuitBreaker": {"openFor": "500ms", "window": 10},
    }
    async with serving(lambda _: web.Response(status=200 if is_up else 503)) as service:
        assignment = courier_assignment(service.url, policy=policy, delivery={"inlineLimit": "1h"})
        async with courier_with_clock(queue, assignment, clock) as courier:
            await until(lambda: courier.gate.breaker.state == "Open")
            clock.step_ms = step_ms
            is_up = True
            await until(lambda: queue.is_settled)
            assert courier.gate.breaker.state == "Closed"
    assert not queue.buried()


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_a_stepped_clock_does_not_end_the_time_that_a_circuit_is_open(step_ms: int):
    clock, queue = SteppedClock(), MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(30)))
    policy = {"maxAttempts": 1_000, "backoff": {"strategy": "Immediate"}, "circuitBreaker": {"openFor": "30m"}}
    async with serving(lambda _: web.Response(status=503)) as service:
        assignment = courier_assignment(service.url, policy=policy, delivery={"inlineLimit": "1h"})
        async with courier_with_clock(queue, assignment, clock) as courier:
            await until(lambda: courier.gate.breaker.state == "Open" and not courier.deliveries_in_flight)
            sent, clock.step_ms = len(service.received), step_ms
            await asyncio.sleep(1)  # several rounds of claiming
            assert (courier.gate.breaker.state, len(service.received)) == ("Open", sent)


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("per", ["2s", "30m"])
async def test_a_stepped_clock_neither_refills_the_error_budget_nor_holds_it_back(step_ms: int, per: str):
    clock, queue = SteppedClock(), MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(12)))
    policy = {**QUICK, "errorBudget": {"letters": 5, "per": per}}
    async with serving(lambda _: web.Response(status=422)) as service:
        assignment = courier_assignment(service.url, policy=policy)
        async with courier_with_clock(queue, assignment, clock) as courier:
            await until(lambda: courier.gate.pause_reason(monotonic_ms())[0] == "ErrorBudgetSpent")
            clock.step_ms = step_ms
            if per == "2s":
                await until(lambda: queue.is_settled)
            else:
                await asyncio.sleep(1)  # twice as long as the courier waits before it looks again
                assert len(queue.buried()) == 5
