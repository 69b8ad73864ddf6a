"""A courier whose clock is off by five minutes waits as long as configured and loses no message."""

import signal
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.helpers.headers import read_own_envelope
from tests.shifted_clock import shifted_clock
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import Received, serving, until
from tests.workers.worker_processes import Pod

WAIT_S = 3
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
