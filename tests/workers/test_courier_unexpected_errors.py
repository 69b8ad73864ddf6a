"""Unexpected errors of the courier itself: of one message, of a task, of the process."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.workers.courier import letters, main
from deadletter.workers.delivery.http.request import RequestRenderer
from deadletter.workers.environment import WorkerEnvironment
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message
from tests.workers.http_service import serving, until

CANARY = "canary-7731"
RENDER_HEAD = RequestRenderer.render_head


def failing_on_poison(self, one, metadata):
    if one.value == b"poison":
        raise ValueError(f"{CANARY} {one.value!r}")
    return RENDER_HEAD(self, one, metadata)


@pytest.mark.parametrize("on_exhausted", ["Bury", "Discard"])
async def test_an_unexpected_error_of_one_message_is_retried_then_buried_and_blocks_no_others(on_exhausted: str):
    queue = MemoryQueue()
    queue.send(message("poison", "a"), *(message(f"m{n}", f"k{n}") for n in range(5)))
    policy = {**QUICK, "maxAttempts": 3, "onExhausted": on_exhausted}
    assignment = courier_assignment("http://placeholder.test/", policy=policy)
    with patch.object(RequestRenderer, "render_head", failing_on_poison), capture_logs() as logs:
        async with serving() as service, queue.courier(assignment.model_copy(update={"url": service.url})):
            await until(lambda: queue.is_settled)
    assert sorted(service.bodies) == sorted(f"m{n}".encode() for n in range(5))
    (envelope,) = queue.envelopes()
    assert (envelope.failure.type, envelope.attempts, envelope.reason) == ("CourierError", 3, "AttemptsExhausted")
    assert "ValueError in test_courier_unexpected_errors.py" in envelope.failure.message
    assert logs
    assert CANARY not in envelope.failure.message + str(logs)


async def test_a_courier_with_a_failed_task_finishes_the_others_and_leaves_the_claim_to_the_next():
    queue = MemoryQueue()
    queue.send(message("poison", "a"), message("good", "b"))

    def failed(claim, *more):
        raise ValueError(CANARY)

    answer = lambda one: web.Response(status=422 if one.body == b"poison" else 200)  # noqa: E731
    async with serving(answer) as service:
        assignment = courier_assignment(service.url)
        with patch.object(letters, "failed_letter", failed), pytest.raises(ValueError, match=CANARY):
            async with queue.courier(assignment, "pod-0"):
                await until(lambda: len(service.received) == 2)
        async with queue.courier(assignment, "pod-1"):
            await until(lambda: queue.is_settled)
    assert [one.value for one in queue.buried()] == [b"poison"]
    assert service.bodies.count(b"good") == 1


def environment_in(folder: Path) -> WorkerEnvironment:
    assignment = {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_TERMINATION_LOG": str(folder / "end"), "DLQ_HEALTH_PORT": "0"}
    return WorkerEnvironment.from_environment(assignment)


async def test_the_termination_message_of_a_failed_courier_contains_no_payload(tmp_path: Path):
    def broken(*words, **more):
        raise ValueError(CANARY)

    process = main.CourierProcess(courier_assignment("http://shop.test/"), environment_in(tmp_path))
    with patch.object(main, "open_broker", broken):
        assert await process.run(asyncio.Event()) == 1
    message = json.loads((tmp_path / "end").read_text())
    assert message["reason"] == "CourierError"
    assert "ValueError in test_courier_unexpected_errors.py" in message["message"]
    assert CANARY not in json.dumps(message)


@pytest.mark.parametrize(
    ("worked", "pauses"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 0], [1, 2, 4, 8, 16, 30, 30, 30]),
        ([0, 0, 3600, 0, 0], [1, 2, 1, 2, 4]),
        ([0, 0, 0, 0, 0, 0, 120, 120, 0], [1, 2, 4, 8, 16, 30, 1, 1, 2]),
        ([0, 0, 60, 119], [1, 2, 4, 8]),
    ],
    ids=["never", "for an hour", "for a while", "too shortly"],
)
def test_reconnect_delays_grow_until_a_subscription_was_steady(worked: list[float], pauses: list[float]):
    waiting = main.ReconnectBackoff()
    assert [waiting.delay_after(seconds) for seconds in worked] == pauses


async def test_only_time_with_a_subscription_resets_the_reconnect_delay(tmp_path: Path):
    now, worked_times, stop, hour = 0.0, [], asyncio.Event(), 3600.0
    attempts = iter(["closed", "open", "closed", "open"])

    @asynccontextmanager
    async def open_broker(*_):
        nonlocal now
        if next(attempts) == "closed":
            now += hour
            raise BrokerUnreachable("connection refused")
        yield MemoryQueue().broker

    async def run(*_):
        nonlocal now
        now += hour
        raise BrokerUnreachable("connection lost")

    def delay_after(_, worked: float) -> float:
        worked_times.append(worked)
        if len(worked_times) == 4:
            stop.set()
        return 0.0

    process = main.CourierProcess(courier_assignment("http://shop.test/"), environment_in(tmp_path), lambda: now)
    with (
        patch.object(main, "open_broker", open_broker),
        patch.object(main.Courier, "run", run),
        patch.object(main.ReconnectBackoff, "delay_after", delay_after),
    ):
        assert await process.run(stop) == 0
    assert worked_times == [0.0, hour, 0.0, hour]
