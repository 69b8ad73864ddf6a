"""This release and the one before it work on the same boxes and ledgers: after an upgrade, a rollback, and together."""

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

from deadletter.api.assignments import ReplayAssignment
from deadletter.brokers.types import MonitoredBox
from deadletter.core.boxes import BoxStats
from tests import previous
from tests.bed.places import REPOSITORY
from tests.brokers.staging import now
from tests.versions.sites import Site
from tests.workers import shop
from tests.workers.couriers import LOOPBACK, message
from tests.workers.pods import Pod, Program, Shop
from tests.workers.services import until
from tests.workers.wires import Wire

PATIENCE = 120
COUNT = 2_000
BAD = [number for number in range(COUNT) if shop.is_bad(number)]
POLICY = {"maxAttempts": 20, "backoff": {"strategy": "Fixed", "initial": "10ms"}, "circuitBreaker": {"enabled": False}}
OLD = {"PYTHONPATH": previous.PYTHON_PATH}
NEW = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "operator"), str(REPOSITORY)))}
BOTH = pytest.mark.parametrize(
    ("first", "second"), [pytest.param(OLD, NEW, id="upgrade"), pytest.param(NEW, OLD, id="rollback")]
)


class Queue:
    """One queue that both releases work on, and its service."""

    def __init__(self, site: Site, folder: Path) -> None:
        tag = uuid.uuid4().hex[:10]
        self.site, self.folder = site, folder
        self.wire = Wire(site.broker, site.spec, f"{{{tag}}}." if site.kind == "redis" else f"{tag}.")
        self.service = Shop(folder / "shop")

    def pod(self, release: dict[str, str], name: str = "pod-0") -> Pod:
        """A courier. Letters that the service puts off are parked."""
        told = self.wire.assignment(self.service.url, policy=POLICY, delivery={"inlineLimit": "1s"})
        return Pod(self.folder / f"{name}-{uuid.uuid4().hex[:4]}", told, name=name, **release)

    def replayer(self, release: dict[str, str], per_second: int) -> Pod:
        """A Replay of all letters to another box, always the same one."""
        told = ReplayAssignment.model_validate(
            {
                "namespace": "test",
                "name": "replay",
                "uid": "uid-1",
                "queue": "orders",
                "broker": self.site.spec.to_wire(),
                "boxes": {name: self.wire.prefix + name for name in ("dead", "retry")}
                | {"source": f"{self.wire.prefix}orders", "ledger": f"{self.wire.prefix}dead.ledger"},
                "spec": {"queueRef": {"name": "orders"}},
                "target": {"kind": "Queue", "box": f"{self.wire.prefix}other"},
                "allow": LOOPBACK,
            }
        )
        made = Pod(self.folder / f"replay-{uuid.uuid4().hex[:4]}", told, "deadletter", "replay", **release)  # type: ignore[arg-type]
        (made.folder / "live.json").write_text(json.dumps({"rate": {"perSecond": per_second}}))
        return made

    async def reading(self, release: dict[str, str]) -> dict[str, Any]:
        """What the sweep of a release reads."""
        prefix = self.wire.prefix
        words = (self.site.kind, self.site.address, f"{prefix}dead", f"{prefix}dead.ledger", f"{prefix}retry")
        program = "tests.versions.sweeping_0_2" if release is OLD else "tests.versions.sweeping"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", program, *words,
            env=os.environ | release, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, errors = await asyncio.wait_for(child.communicate(), PATIENCE)
        assert child.returncode == 0, errors.decode()[-2_000:]
        found: dict[str, Any] = json.loads(said)
        assert (str(previous.WHEEL) in found.pop("package")) is (release is OLD)
        return found

    async def until_parked(self) -> None:
        """Letters are parked and buried."""
        prefix = self.wire.prefix
        watched = MonitoredBox(f"{prefix}dead", f"{prefix}dead.ledger", f"{prefix}retry")
        registers = self.site.broker.monitor()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = (await registers.sweep([watched], now()))[watched.dead]
                    if isinstance(found, BoxStats) and found.parked and found.depth:
                        return
                    await asyncio.sleep(0.05)
        finally:
            await registers.close()

    async def check(self, release: dict[str, str], depth: int, **replayed: int) -> None:
        """Both releases read the same, once the pods have stopped."""
        found = await self.reading(release)
        assert (found["depth"], found["parked"], found["couriers"]) == (depth, 0, [])
        assert found["replayed"] == {uid.replace("_", "-"): count for uid, count in replayed.items()}

    async def send(self, numbers: range) -> None:
        await self.wire.send(*(message(f"{number}", f"k{number % 97}") for number in numbers))

    async def numbers(self, box: str) -> Counter[int]:
        return Counter(int(taken.message.value or b"") for taken in await self.wire.buried(box))


@pytest.fixture
async def queue(site: Site, tmp_path: Path):
    made = Queue(site, tmp_path)
    await made.wire.make(partitions=3)
    await made.service.start()
    yield made
    await made.service.end()


async def stopped(pod: Program) -> None:
    assert await pod.end(signal.SIGTERM) == 0, pod.log


@BOTH
async def test_what_one_release_began_the_other_continues(queue: Queue, first: dict, second: dict) -> None:
    book = queue.service.book
    await queue.send(range(COUNT // 2))
    pod = queue.pod(first)
    try:
        await pod.start()
        await queue.until_parked()
        await queue.send(range(COUNT // 2, COUNT))
        delivered = book.look()
        await until(lambda: book.look() > delivered, PATIENCE)
    finally:
        await pod.end(signal.SIGKILL)  # letters are parked and buried by now, messages are in its hands
    assert (await queue.reading(second))["parked"] > 0
    pod = queue.pod(second)
    try:
        await pod.start()
        await until(lambda: book.look() == COUNT - len(BAD), PATIENCE)
        await queue.wire.until_buried(len(BAD))
        await stopped(pod)
    finally:
        await pod.end(signal.SIGKILL)
    assert await queue.numbers("dead") == Counter(BAD)
    # Flaky messages that come faster than they are retried are parked and let others pass.
    book.check_order(lambda number: shop.is_put_off(number) or shop.is_flaky(number))
    for release in (first, second):
        await queue.check(release, len(BAD))


@BOTH
async def test_a_replay_that_one_release_began_the_other_finishes(queue: Queue, first: dict, second: dict) -> None:
    await queue.send(range(COUNT))
    pod = queue.pod(first)
    try:
        await pod.start()
        await queue.wire.until_buried(len(BAD))
        await until(lambda: queue.service.book.look() == COUNT - len(BAD), PATIENCE)
        await stopped(pod)
    finally:
        await pod.end(signal.SIGKILL)
    began = queue.replayer(first, per_second=2)
    try:
        await began.start()
        await queue.wire.until_buried(3, "other")
    finally:
        await began.end(signal.SIGKILL)
    sent = len(await queue.wire.buried("other"))
    assert 3 <= sent < len(BAD), began.log
    goes_on = queue.replayer(second, per_second=1_000)
    await goes_on.start()
    assert goes_on.process is not None
    assert await asyncio.wait_for(goes_on.process.wait(), PATIENCE) == 0, goes_on.log
    assert await queue.numbers("other") == Counter(BAD)
    for release in (first, second):
        await queue.check(release, 0, uid_1=len(BAD))


async def test_couriers_of_both_releases_share_the_work(queue: Queue) -> None:
    """As in a rolling upgrade: one of each, then the new one alone."""
    book, pods = queue.service.book, (queue.pod(OLD, "pod-0"), queue.pod(NEW, "pod-1"))
    try:
        for pod in pods:
            await pod.start()
        async with asyncio.timeout(PATIENCE):
            while (await queue.reading(OLD))["couriers"] != ["pod-0", "pod-1"]:
                await asyncio.sleep(0.5)
        await queue.send(range(COUNT // 2))
        await until(lambda: book.look() >= COUNT // 4, PATIENCE)
        assert (await queue.reading(NEW))["couriers"] == ["pod-0", "pod-1"]
        await queue.send(range(COUNT // 2, COUNT))
        await until(lambda: book.look() >= COUNT // 2, PATIENCE)
        await stopped(pods[0])
        await until(lambda: book.look() == COUNT - len(BAD), PATIENCE)
        await queue.wire.until_buried(len(BAD))
        await stopped(pods[1])
    finally:
        for pod in pods:
            await pod.end(signal.SIGKILL)
    assert await queue.numbers("dead") == Counter(BAD)
    for release in (OLD, NEW):
        await queue.check(release, len(BAD))
