"""What nobody expected: a message over which the courier itself breaks, and a courier that breaks as a whole."""

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


def breaking(self, one, metadata):
    if one.value == b"poison":
        raise ValueError(f"{CANARY} {one.value!r}")
    return RENDER_HEAD(self, one, metadata)


async def test_a_message_over_which_the_courier_breaks_is_tried_again_then_buried_and_others_pass():
    queue = MemoryQueue()
    queue.send(message("poison", "a"), *(message(f"m{n}", f"k{n}") for n in range(5)))
    assignment = courier_assignment("http://placeholder.test/", policy={**QUICK, "maxAttempts": 3})
    with patch.object(RequestRenderer, "render_head", breaking), capture_logs() as logs:
        async with serving() as service, queue.courier(assignment.model_copy(update={"url": service.url})):
            await until(lambda: queue.is_settled)
    assert sorted(service.bodies) == sorted(f"m{n}".encode() for n in range(5))
    (envelope,) = queue.envelopes()
    assert (envelope.failure.type, envelope.attempts, envelope.reason) == ("CourierError", 3, "AttemptsExhausted")
    assert "ValueError in test_courier_unexpected_errors.py" in envelope.failure.message
    assert logs
    assert CANARY not in envelope.failure.message + str(logs)


async def test_a_courier_that_breaks_finishes_the_rest_and_its_claim_is_free_for_the_next():
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


async def test_a_courier_that_breaks_ends_with_a_word_and_no_byte_of_a_message_in_it(tmp_path: Path):
    def broken(*words, **more):
        raise ValueError(CANARY)

    process = main.CourierProcess(courier_assignment("http://shop.test/"), environment_in(tmp_path))
    with patch.object(main, "open_broker", broken):
        assert await process.run(asyncio.Event()) == 1
    said = json.loads((tmp_path / "end").read_text())
    assert said["reason"] == "CourierError"
    assert "ValueError in test_courier_unexpected_errors.py" in said["message"]
    assert CANARY not in json.dumps(said)


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
def test_pauses_grow_until_a_desk_was_steady(worked: list[float], pauses: list[float]):
    waiting = main.ReconnectBackoff()
    assert [waiting.delay_after(seconds) for seconds in worked] == pauses


async def test_an_hour_at_a_desk_counts_and_an_hour_without_one_does_not(tmp_path: Path):
    now, heard, stop, hour = 0.0, [], asyncio.Event(), 3600.0
    ways = iter(["closed", "open", "closed", "open"])

    @asynccontextmanager
    async def open_broker(*_):
        nonlocal now
        if next(ways) == "closed":
            now += hour
            raise BrokerUnreachable("nobody is there")
        yield MemoryQueue().broker

    async def run(*_):
        nonlocal now
        now += hour
        raise BrokerUnreachable("it went away")

    def delay_after(_, worked: float) -> float:
        heard.append(worked)
        if len(heard) == 4:
            stop.set()
        return 0.0

    process = main.CourierProcess(courier_assignment("http://shop.test/"), environment_in(tmp_path), lambda: now)
    with (
        patch.object(main, "open_broker", open_broker),
        patch.object(main.Courier, "run", run),
        patch.object(main.ReconnectBackoff, "delay_after", delay_after),
    ):
        assert await process.run(stop) == 0
    assert heard == [0.0, hour, 0.0, hour]
