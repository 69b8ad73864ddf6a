"""A courier killed at any moment: nothing lost, no letter twice."""

import asyncio
import os
import random
import signal
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from tests.workers.couriers import QUICK, message
from tests.workers.services import Received, serving, until
from tests.workers.wires import Wire

REPOSITORY = Path(__file__).parents[2]


class Pod:
    """A courier as a process of its own, with the files a pod would have."""

    def __init__(self, folder: Path, told) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "assignment.json").write_text(told.model_dump_json(by_alias=True, exclude_none=True))
        (folder / "live.json").write_text("{}")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "operator"), str(REPOSITORY))),
            "DLQ_ASSIGNMENT_DIR": str(self.folder),
            "DLQ_SECRETS_DIR": str(self.folder),
            "DLQ_TERMINATION_LOG": str(self.folder / "termination"),
            "DLQ_HEALTH_PORT": "0",
            "POD_NAME": "pod-0",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "deadletter", "courier", env=environment, stderr=log, stdout=log
            )

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()


async def walk(wire: Wire, folder: Path, count: int, kills: int) -> None:
    """`count` messages, some never delivered and some parked on their way, with `kills` kills between."""
    delivered: set[bytes] = set()

    def answer(one: Received) -> web.Response:
        number = int(one.body)
        if number % 10 == 3:
            return web.Response(status=422)
        if number % 10 == 5 and int(one.headers["Dlq-Attempt"]) < 3:
            return web.Response(status=503)
        delivered.add(one.body)
        return web.Response()

    bad = {f"{number}".encode() for number in range(count) if number % 10 == 3}
    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms"}}
    async with serving(answer) as service:
        told = wire.assignment(service.url, policy=policy, delivery={"inlineLimit": "100ms"})
        pod = Pod(folder / uuid.uuid4().hex, told)
        await pod.start()
        try:
            for first in range(0, count, 1000):
                numbers = range(first, min(first + 1000, count))
                await wire.send(*(message(f"{number}", f"k{number % 50}") for number in numbers))
            for kill in range(kills):
                want = count * (kill + 1) // (kills + 2)
                await until(lambda want=want: len(delivered) >= want, 240)
                await asyncio.sleep(random.random() * 0.1)  # anywhere between two steps
                await pod.end(signal.SIGKILL)
                await pod.start()
            await until(lambda: len(delivered) == count - len(bad), 240)
            await wire.until_buried(len(bad))
        finally:
            code = await pod.end(signal.SIGTERM)
    assert code == 0, (pod.folder / "log").read_text()[-4000:]
    letters = Counter(taken.message.value for taken in await wire.buried())
    assert letters == Counter(bad)


async def test_a_killed_courier_loses_nothing_and_buries_no_letter_twice(wire: Wire, tmp_path: Path):
    await walk(wire, tmp_path, 400, 2)


@pytest.mark.kill
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_messages_and_many_kills(wire: Wire, tmp_path: Path):
    await walk(wire, tmp_path, 100_000, 20)
