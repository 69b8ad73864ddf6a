"""This release and the previous one work on the same boxes and ledgers: after an upgrade, a rollback, and together."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats
from deadletter.wall_clock import now_ms
from tests import previous
from tests.bed.places import REPOSITORY
from tests.versions.sites import Site
from tests.workers import recording_service
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message
from tests.workers.http_service import until
from tests.workers.worker_processes import Pod, Program, RecordingService

TIMEOUT_S = 120
COUNT = 2_000
BAD = [number for number in range(COUNT) if recording_service.is_bad(number)]
POLICY = {"maxAttempts": 20, "backoff": {"strategy": "Fixed", "initial": "10ms"}, "circuitBreaker": {"enabled": False}}
OLD = {"PYTHONPATH": previous.PYTHON_PATH}
NEW = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "operator"), str(REPOSITORY)))}
BOTH = pytest.mark.parametrize(
    ("first", "second"), [pytest.param(OLD, NEW, id="upgrade"), pytest.param(NEW, OLD, id="rollback")]
)


class Queue:
    """One queue that both releases work on, with its service."""

    def __init__(self, site: Site, folder: Path) -> None:
        tag = uuid.uuid4().hex[:10]
        self.site, self.folder = site, folder
        self.boxes = BrokerQueue(site.broker, site.spec, f"{{{tag}}}." if site.kind == "redis" else f"{tag}.")
        self.service = RecordingService(folder / "shop")

    def courier(self, release: dict[str, str], name: str = "pod-0") -> Pod:
        """Return the pod of a courier; letters that the service wants later are parked."""
        assignment = self.boxes.assignment(self.service.url, policy=POLICY, delivery={"inlineLimit": "1s"})
        return Pod(self.folder / f"{name}-{uuid.uuid4().hex[:4]}", assignment, name=name, **release)

    def replayer(self, release: dict[str, str], per_second: int) -> Pod:
        """Return the pod of a Replay of all letters to another box; the Replay is always the same one."""
        assignment = ReplayAssignment.model_validate(
            {
                "namespace": "test",
                "name": "replay",
                "uid": "uid-1",
                "queue": "orders",
                "broker": self.site.spec.to_wire(),
                "boxes": {name: self.boxes.prefix + name for name in ("dead", "retry")}
                | {"source": f"{self.boxes.prefix}orders", "ledger": f"{self.boxes.prefix}dead.ledger"},
                "spec": {"queueRef": {"name": "orders"}},
                "target": {"kind": "Queue", "box": f"{self.boxes.prefix}other"},
                "allow": LOOPBACK,
            }
        )
        made = Pod(self.folder / f"replay-{uuid.uuid4().hex[:4]}", assignment, "deadletter", "replay", **release)  # type: ignore[arg-type]
        (made.folder / "live.json").write_text(json.dumps({"rate": {"perSecond": per_second}}))
        return made

    async def sweep(self, release: dict[str, str]) -> dict[str, Any]:
        """Return what a sweep of this release reads."""
        prefix = self.boxes.prefix
        arguments = (self.site.kind, self.site.address, f"{prefix}dead", f"{prefix}dead.ledger", f"{prefix}retry")
        program = "tests.versions.sweeping_0_2" if release is OLD else "tests.versions.sweeping"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", program, *arguments,
            env=os.environ | release, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await asyncio.wait_for(child.communicate(), TIMEOUT_S)
        assert child.returncode == 0, errors.decode()[-2_000:]
        found: dict[str, Any] = json.loads(output)
        assert (str(previous.WHEEL) in found.pop("package")) is (release is OLD)
        return found

    async def until_parked(self) -> None:
        """Wait until some letters are parked and some are buried."""
        prefix = self.boxes.prefix
        monitored = MonitoredBox(f"{prefix}dead", f"{prefix}dead.ledger", f"{prefix}retry")
        monitor = self.site.broker.monitor()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    found = (await monitor.sweep([monitored], now_ms()))[monitored.dead]
                    if isinstance(found, BoxStats) and found.parked and found.depth:
                        return
                    await asyncio.sleep(0.05)
        finally:
            await monitor.close()

    async def check(self, release: dict[str, str], depth: int, **replayed: int) -> None:
        """Check what a sweep of this release reads once the pods have stopped."""
        found = await self.sweep(release)
        assert (found["depth"], found["parked"], found["couriers"]) == (depth, 0, [])
        assert found["replayed"] == {uid.replace("_", "-"): count for uid, count in replayed.items()}

    async def send(self, numbers: range) -> None:
        await self.boxes.send(*(message(f"{number}", f"k{number % 97}") for number in numbers))

    async def numbers(self, box: str) -> Counter[int]:
        return Counter(int(taken.message.value or b"") for taken in await self.boxes.buried(box))


@pytest.fixture
async def queue(site: Site, tmp_path: Path):
    made = Queue(site, tmp_path)
    await made.boxes.create(partitions=3)
    await made.service.start()
    yield made
    await made.service.end()


async def stop(pod: Program) -> None:
    assert await pod.end(signal.SIGTERM) == 0, pod.log


@BOTH
async def test_a_courier_continues_what_the_other_release_began(queue: Queue, first: dict, second: dict) -> None:
    book = queue.service.deliveries
    await queue.send(range(COUNT // 2))
    pod = queue.courier(first)
    try:
        await pod.start()
        await queue.until_parked()
        await queue.send(range(COUNT // 2, COUNT))
        delivered = book.refresh()
        await until(lambda: book.refresh() > delivered, TIMEOUT_S)
    finally:
        await pod.end(signal.SIGKILL)  # letters are parked and buried by now, other messages are in flight
    assert (await queue.sweep(second))["parked"] > 0
    pod = queue.courier(second)
    try:
        await pod.start()
        await until(lambda: book.refresh() == COUNT - len(BAD), TIMEOUT_S)
        await queue.boxes.until_buried(len(BAD))
        await stop(pod)
    finally:
        await pod.end(signal.SIGKILL)
    assert await queue.numbers("dead") == Counter(BAD)
    book.check_order()
    for release in (first, second):
        await queue.check(release, len(BAD))


@BOTH
async def test_a_replay_finishes_what_the_other_release_began(queue: Queue, first: dict, second: dict) -> None:
    await queue.send(range(COUNT))
    pod = queue.courier(first)
    try:
        await pod.start()
        await queue.boxes.until_buried(len(BAD))
        await until(lambda: queue.service.deliveries.refresh() == COUNT - len(BAD), TIMEOUT_S)
        await stop(pod)
    finally:
        await pod.end(signal.SIGKILL)
    began = queue.replayer(first, per_second=2)
    try:
        await began.start()
        await queue.boxes.until_buried(3, "other")
    finally:
        await began.end(signal.SIGKILL)
    sent = len(await queue.boxes.buried("other"))
    assert 3 <= sent < len(BAD), began.log
    continued = queue.replayer(second, per_second=1_000)
    await continued.start()
    assert continued.process is not None
    assert await asyncio.wait_for(continued.process.wait(), TIMEOUT_S) == 0, continued.log
    assert await queue.numbers("other") == Counter(BAD)
    for release in (first, second):
        await queue.check(release, 0, uid_1=len(BAD))


async def test_couriers_of_both_releases_share_the_work(queue: Queue) -> None:
    """A rolling upgrade: first one courier of each release, then only the new one."""
    book, pods = queue.service.deliveries, (queue.courier(OLD, "pod-0"), queue.courier(NEW, "pod-1"))
    try:
        for pod in pods:
            await pod.start()
        async with asyncio.timeout(TIMEOUT_S):
            while (await queue.sweep(OLD))["couriers"] != ["pod-0", "pod-1"]:
                await asyncio.sleep(0.5)
        await queue.send(range(COUNT // 2))
        await until(lambda: book.refresh() >= COUNT // 4, TIMEOUT_S)
        assert (await queue.sweep(NEW))["couriers"] == ["pod-0", "pod-1"]
        await queue.send(range(COUNT // 2, COUNT))
        await until(lambda: book.refresh() >= COUNT // 2, TIMEOUT_S)
        await stop(pods[0])
        await until(lambda: book.refresh() == COUNT - len(BAD), TIMEOUT_S)
        await queue.boxes.until_buried(len(BAD))
        await stop(pods[1])
    finally:
        for pod in pods:
            await pod.end(signal.SIGKILL)
    assert await queue.numbers("dead") == Counter(BAD)
    for release in (OLD, NEW):
        await queue.check(release, len(BAD))
