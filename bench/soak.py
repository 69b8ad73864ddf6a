"""An hour of our programs, idle and at work, on a real Kafka and a real Redis: does their memory stay as it is?

at work  couriers that deliver, park and bury; a replayer that sends back what they buried; a sweep of those queues
idle     couriers with nothing to deliver; a sweep of many queues in which nothing happens

Resident memory is read every 10 s after the first ten minutes (a sixth of the time); a line a program compares the
median of the last quarter with that of the first. The last line counts: every message that was sent is delivered or
buried.

python -m bench.soak [--seconds 3600] [--rate 50]
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from bench.lines import bound, progress, versus
from bench.soaked import IDLE, Queue, connections, open_one
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core.box_spec import BoxSpec
from deadletter.core.letters import Message, Place
from tests.bed import beds, places, processes

SAMPLE_SECONDS = 10.0
WARM_SHARE = 6  # one sixth of the time
GROWN = 105.0  # percent of the first quarter's memory
DRAIN_SECONDS = 120.0
KINDS = ("bad", "slow", "slow", *["good"] * 17)  # 1 in 20 is refused for ever, 2 in 20 the first two times


class Service:
    """Takes most messages at once, some at the third attempt, some never."""

    def __init__(self) -> None:
        self._refused: dict[str, int] = {}
        self.delivered: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        """One delivery."""
        key = (await request.read()).split(b" ", 1)[0].decode()
        if "bad" in key:
            return web.Response(status=422)
        if "slow" in key and self._refused.setdefault(key, 0) < 2:
            self._refused[key] += 1
            return web.Response(status=503)
        self._refused.pop(key, None)
        self.delivered.add(key)
        return web.Response()


@dataclass
class Soak:
    """What runs, and what was seen of it."""

    bed: beds.Bed
    seconds: float
    rate: int
    service: Service = field(default_factory=Service)
    programs: dict[str, processes.Process] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    sent: int = 0

    async def run(self) -> None:
        """Start everything, feed and look on, tell."""
        addresses = connections(
            await asyncio.to_thread(self.bed.kafka),
            await asyncio.to_thread(self.bed.redis),
        )
        runner = web.AppRunner(_application(self.service), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # noqa: SLF001  (aiohttp tells it nowhere else)
        try:
            async with open_one(addresses["kafka"]) as kafka, open_one(addresses["redis"]) as redis:
                brokers = {"kafka": kafka, "redis": redis}
                await self._begin(brokers, addresses, f"http://127.0.0.1:{port}/")
                await self._look_on(brokers)
                await self._tell(brokers)
        finally:
            processes.stop(self.programs.values())
            await runner.cleanup()

    async def _begin(self, brokers: dict[str, Broker], addresses: dict[str, dict], url: str) -> None:
        for kind, broker in brokers.items():
            for queue in (Queue(kind, "busy"), Queue(kind, "quiet")):
                await _make(broker, queue)
                state = "loaded" if queue.name == "busy" else "idle"
                self._start_courier(f"courier-{kind}-{state}", queue, addresses[kind], url)
            for number in range(IDLE):
                await broker.ensure(BoxSpec(Queue(kind, f"idle-{number}").dead, 3))
        for role, state in (("sweep", "idle"), ("sweep", "loaded"), ("replay", "loaded")):
            words = ["-m", "bench.soaked", role, state, json.dumps(addresses)]
            self._start(f"{role}-{state}", words, {})

    def _start_courier(self, name: str, queue: Queue, address: dict, url: str) -> None:
        folder = self.bed.directory / "assignments" / name
        folder.mkdir(parents=True)
        (folder / "assignment.json").write_text(json.dumps(queue.assignment(address, url)))
        told = {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_SECRETS_DIR": str(folder), "DLQ_HEALTH_PORT": "0"}
        told |= {"DLQ_TERMINATION_LOG": str(folder / "last-word"), "POD_NAME": name}
        self._start(name, ["-m", "deadletter", "courier"], told)

    def _start(self, name: str, words: list[str], told: dict[str, str]) -> None:
        path = f"{places.REPOSITORY / 'operator'}{os.pathsep}{places.REPOSITORY}"
        command = [sys.executable, *words]
        self.programs[name] = processes.start(name, command, self.bed.directory, {**told, "PYTHONPATH": path})

    async def _look_on(self, brokers: dict[str, Broker]) -> None:
        began, sampled = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < self.seconds:
            await self._feed(brokers)
            if now >= self.seconds / WARM_SHARE and now - sampled >= SAMPLE_SECONDS:
                sampled = now
                self._sample()
                progress(
                    f"{now / 60:.1f} min: {self.sent} sent, {len(self.service.delivered)} delivered, {self._mib()}"
                )
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began - now)))

    def _mib(self) -> str:
        return ", ".join(f"{name} {memory[-1] >> 10}" for name, memory in self.memory.items())

    async def _feed(self, brokers: dict[str, Broker]) -> None:
        numbers = range(self.sent, self.sent + self.rate)
        self.sent += self.rate
        for kind, broker in brokers.items():
            await broker.publish([_publication(Queue(kind, "busy"), number) for number in numbers])

    def _sample(self) -> None:
        for name, program in self.programs.items():
            if not program.is_alive():
                log = (self.bed.directory / "logs" / f"{name}.log").read_text(errors="replace")
                raise processes.BedError(f"{name} ended; the end of its log:\n{log[-4_000:]}")
            self.memory.setdefault(name, []).append(_resident(program.pid))

    async def _tell(self, brokers: dict[str, Broker]) -> None:
        await self._drain()
        for name, memory in self.memory.items():
            quarter = max(1, len(memory) // 4)
            first, last = statistics.median(memory[:quarter]), statistics.median(memory[-quarter:])
            progress(f"{name}: {first / 1024:.1f} MiB, then {last / 1024:.1f} MiB of {len(memory)} samples")
            bound(f"soak-{name}", "% of its memory", 100 * last / first, GROWN)
        settled = len(self.service.delivered)
        for kind, broker in brokers.items():
            settled += len(await _buried(broker, Queue(kind, "busy")))
        versus("soak-messages", "messages", settled, "sent", 2 * self.sent)
        used = sum(_cpu_seconds(program.pid) for program in self.programs.values())
        progress(f"our programs took {100 * used / self.seconds:.1f} % of a core")

    async def _drain(self) -> None:
        wanted = 2 * sum(KINDS[number % len(KINDS)] != "bad" for number in range(self.sent))
        deadline = time.monotonic() + DRAIN_SECONDS
        while len(self.service.delivered) < wanted and time.monotonic() < deadline:
            await asyncio.sleep(1)


def _application(service: Service) -> web.Application:
    application = web.Application()
    application.router.add_post("/", service.take)
    return application


async def _make(broker: Broker, queue: Queue) -> None:
    for name in (queue.source, queue.mended):
        await broker.ensure(BoxSpec(name, 3))
    # What was sent back is gone after minutes: else each Replay would have more to read than the one before.
    await broker.ensure(BoxSpec(queue.dead, 3, retention_ms=120_000, config={"segment.ms": "60000"}))
    await broker.ensure(BoxSpec(queue.retry, 3, retention_ms=-1, is_retry_box=True))


def _publication(queue: Queue, number: int) -> Publication:
    key = f"{queue.kind}-{KINDS[number % len(KINDS)]}-{number}"
    message = Message(key.encode(), f"{key} {'x' * 500}".encode(), (), time.time_ns() // 1_000_000)
    return Publication(queue.source, message, Place("soak", 0, number))


async def _buried(broker: Broker, queue: Queue) -> set[bytes | None]:
    """Keys of what lies in the dead box, or lay there and was sent back."""
    found = set()
    for box in (queue.dead, queue.mended):
        async for batch in broker.read(box, await broker.window(box)):
            found |= {one.message.key for one in batch}
    return found


def _resident(pid: int) -> int:
    """KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """A bed of our own, which ends with us."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--rate", type=int, default=50, help="messages a second on each broker")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    bed = beds.create(f"soak-{os.getpid()}")
    try:
        asyncio.run(Soak(bed, given.seconds, given.rate).run())
    except BaseException:
        with suppress(OSError):
            progress(f"logs: {beds.keep_logs(bed)}")
        raise
    finally:
        bed.down()


if __name__ == "__main__":
    main()
