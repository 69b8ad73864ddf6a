"""Run our programs for an hour on a real Kafka and a real Redis and check that their memory does not grow.

loaded  couriers that deliver, park and bury; Replays that send back what they buried; a sweep of those queues
idle    couriers with nothing to deliver; a sweep of many queues in which nothing happens

Resident memory is read every 10 s after the first ten minutes (a sixth of the time). One line for each program
compares the median of the last quarter with that of the first. The last line counts messages: every message that was
sent must be delivered or buried.

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
from bench.soak_workers import IDLE_QUEUES, Queue, connections, open_address
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from tests.bed import beds, places, processes

SAMPLE_SECONDS = 10.0
WARM_SHARE = 6  # one sixth of the time
MAX_MEMORY_PERCENT = 105.0  # of the first quarter's memory
DRAIN_SECONDS = 120.0
KINDS = ("bad", "slow", "slow", *["good"] * 17)  # 1 in 20 is always refused, 2 in 20 the first two times


class Service:
    """A service that accepts most messages at once, some at the third attempt, some never."""

    def __init__(self) -> None:
        self._refused: dict[str, int] = {}
        self.delivered: set[str] = set()

    async def receive(self, request: web.Request) -> web.Response:
        """Answer one delivery."""
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
    """The running programs and their memory over time."""

    bed: beds.Bed
    seconds: float
    rate: int
    service: Service = field(default_factory=Service)
    programs: dict[str, processes.Process] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    sent: int = 0

    async def run(self) -> None:
        """Start all programs, send messages and sample memory, print the results."""
        addresses = connections(
            await asyncio.to_thread(self.bed.kafka),
            await asyncio.to_thread(self.bed.redis),
        )
        runner = web.AppRunner(_application(self.service), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # noqa: SLF001  (aiohttp has no public way to get the port)
        try:
            async with open_address(addresses["kafka"]) as kafka, open_address(addresses["redis"]) as redis:
                brokers = {"kafka": kafka, "redis": redis}
                await self._start_programs(brokers, addresses, f"http://127.0.0.1:{port}/")
                await self._send_and_sample(brokers)
                await self._print_results(brokers)
        finally:
            processes.stop(self.programs.values())
            await runner.cleanup()

    async def _start_programs(self, brokers: dict[str, Broker], addresses: dict[str, dict], url: str) -> None:
        for kind, broker in brokers.items():
            for queue in (Queue(kind, "busy"), Queue(kind, "quiet")):
                await _make(broker, queue)
                state = "loaded" if queue.name == "busy" else "idle"
                self._start_courier(f"courier-{kind}-{state}", queue, addresses[kind], url)
            for number in range(IDLE_QUEUES):
                await broker.ensure(BoxSpec(Queue(kind, f"idle-{number}").dead, 3))
        for role, state in (("sweep", "idle"), ("sweep", "loaded"), ("replay", "loaded")):
            arguments = ["-m", "bench.soak_workers", role, state, json.dumps(addresses)]
            self._start(f"{role}-{state}", arguments, {})

    def _start_courier(self, name: str, queue: Queue, address: dict, url: str) -> None:
        folder = self.bed.directory / "assignments" / name
        folder.mkdir(parents=True)
        (folder / "assignment.json").write_text(json.dumps(queue.assignment(address, url)))
        environment = {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_SECRETS_DIR": str(folder), "DLQ_HEALTH_PORT": "0"}
        environment |= {"DLQ_TERMINATION_LOG": str(folder / "termination"), "POD_NAME": name}
        self._start(name, ["-m", "deadletter", "courier"], environment)

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        path = f"{places.REPOSITORY / 'operator'}{os.pathsep}{places.REPOSITORY}"
        command = [sys.executable, *arguments]
        self.programs[name] = processes.start(name, command, self.bed.directory, {**environment, "PYTHONPATH": path})

    async def _send_and_sample(self, brokers: dict[str, Broker]) -> None:
        began, sampled = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < self.seconds:
            await self._send(brokers)
            if now >= self.seconds / WARM_SHARE and now - sampled >= SAMPLE_SECONDS:
                sampled = now
                self._sample()
                progress(
                    f"{now / 60:.1f} min: {self.sent} sent, {len(self.service.delivered)} delivered, {self._mib()}"
                )
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began - now)))

    def _mib(self) -> str:
        return ", ".join(f"{name} {memory[-1] >> 10}" for name, memory in self.memory.items())

    async def _send(self, brokers: dict[str, Broker]) -> None:
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

    async def _print_results(self, brokers: dict[str, Broker]) -> None:
        await self._drain()
        for name, memory in self.memory.items():
            quarter = max(1, len(memory) // 4)
            first, last = statistics.median(memory[:quarter]), statistics.median(memory[-quarter:])
            progress(f"{name}: {first / 1024:.1f} MiB, then {last / 1024:.1f} MiB, {len(memory)} samples")
            bound(f"soak-{name}", "% of its memory", 100 * last / first, MAX_MEMORY_PERCENT)
        settled = len(self.service.delivered)
        for kind, broker in brokers.items():
            settled += len(await _buried(broker, Queue(kind, "busy")))
        versus("soak-messages", "messages", settled, "sent", 2 * self.sent)
        used = sum(_cpu_seconds(program.pid) for program in self.programs.values())
        progress(f"our programs used {100 * used / self.seconds:.1f} % of a core")

    async def _drain(self) -> None:
        wanted = 2 * sum(KINDS[number % len(KINDS)] != "bad" for number in range(self.sent))
        deadline = time.monotonic() + DRAIN_SECONDS
        while len(self.service.delivered) < wanted and time.monotonic() < deadline:
            await asyncio.sleep(1)


def _application(service: Service) -> web.Application:
    application = web.Application()
    application.router.add_post("/", service.receive)
    return application


async def _make(broker: Broker, queue: Queue) -> None:
    for name in (queue.source, queue.replayed):
        await broker.ensure(BoxSpec(name, 3))
    # A short retention: otherwise each Replay would read more letters than the one before.
    await broker.ensure(BoxSpec(queue.dead, 3, retention_ms=120_000, config={"segment.ms": "60000"}))
    await broker.ensure(BoxSpec(queue.retry, 3, retention_ms=-1, is_retry_box=True))


def _publication(queue: Queue, number: int) -> Publication:
    key = f"{queue.kind}-{KINDS[number % len(KINDS)]}-{number}"
    message = Message(key.encode(), f"{key} {'x' * 500}".encode(), (), time.time_ns() // 1_000_000)
    return Publication(queue.source, message, Place("soak", 0, number))


async def _buried(broker: Broker, queue: Queue) -> set[bytes | None]:
    """Return the keys of letters in the dead box and of letters that were replayed."""
    found = set()
    for box in (queue.dead, queue.replayed):
        async for batch in broker.read(box, await broker.window(box)):
            found |= {one.message.key for one in batch}
    return found


def _resident(pid: int) -> int:
    """Return the resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run in a test bed that ends with this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--rate", type=int, default=50, help="messages a second on each broker")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    bed = beds.create(f"soak-{os.getpid()}")
    try:
        asyncio.run(Soak(bed, options.seconds, options.rate).run())
    except BaseException:
        with suppress(OSError):
            progress(f"logs: {beds.keep_logs(bed)}")
        raise
    finally:
        bed.down()


if __name__ == "__main__":
    main()
