"""Replayers in processes of their own, as the Job runs them, and scenes on a real Kafka or Redis."""

import asyncio
import json
import os
import sys
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from deadletter.brokers.connect import open_broker
from tests.workers.replay_scene import Scene, letter

LOCAL_NETWORKS = ("127.0.0.0/8", "::1/128", "10.0.0.0/8")
TIMEOUT_S = 120


def connection(kind: str, address: str) -> dict:
    return {"kafka": {"bootstrapServers": [address]}} if kind == "kafka" else {"redis": {"url": address}}


@pytest.fixture(params=["kafka", "redis"])
def kind(request):
    return request.param


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


async def build_scene(kind: str, request, stack: AsyncExitStack, partitions: int = 1) -> Scene:
    spec = connection(kind, request.getfixturevalue(kind))
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", spec, 1 if kind == "redis" else partitions)
    broker = open_broker(scene.assignment().broker, lambda *_: b"", LOCAL_NETWORKS)
    scene.broker = await stack.enter_async_context(broker)
    return await scene.build()


@pytest.fixture
async def scene(kind, request, stack):
    return await build_scene(kind, request, stack)


async def bury_numbers(scene: Scene, count: int, first: int = 0) -> None:
    for start in range(first, first + count, 500):
        numbers = range(start, min(start + 500, first + count))
        await scene.bury(*(letter(number, origin=scene.name) for number in numbers))


class ReplayPod:
    """A replayer with the files of its pod, started as often as a test wants."""

    def __init__(self, folder: Path, scene: Scene, **spec) -> None:
        self.folder = folder
        self.termination = folder / "termination"
        assignment = scene.assignment(allow=LOCAL_NETWORKS, **spec)
        (folder / "assignment.json").write_text(assignment.model_dump_json(by_alias=True))

    async def start(self) -> asyncio.subprocess.Process:
        environment = {
            "DLQ_ASSIGNMENT_DIR": str(self.folder),
            "DLQ_TERMINATION_LOG": str(self.termination),
            "DLQ_HEALTH_PORT": "0",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = (sys.executable, "-m", "deadletter", "replay")
        log = (self.folder / "log").open("ab")
        return await asyncio.create_subprocess_exec(*command, env=os.environ | environment, stderr=log, stdout=log)

    async def run_to_end(self) -> int:
        return await asyncio.wait_for((await self.start()).wait(), TIMEOUT_S)

    @property
    def termination_message(self) -> dict:
        return json.loads(self.termination.read_text())


async def wait_for_arrivals(scene: Scene, count: int, process: asyncio.subprocess.Process) -> None:
    """Wait until this many letters have wait_for_arrivals, or the process has ended by itself."""
    async with asyncio.timeout(TIMEOUT_S):
        while process.returncode is None and len(await scene.numbers()) < count:
            await asyncio.sleep(0.02)


async def assert_all_replayed_once(scene: Scene, letters: int) -> None:
    assert await scene.numbers() == list(range(letters))
    (progress,) = await scene.all_progress()
    assert (progress.scanned, progress.matched, progress.replayed) == (letters, letters, letters)
    assert (progress.phase, progress.reason) == ("Finished", "AllReplayed")
    assert await scene.open_letters() == []
