"""Couriers and their service as processes of their own, which a test may kill at any moment."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deadletter.api.assignments import CourierAssignment, ReplayAssignment
from tests.bed import ports
from tests.workers import recording_service
from tests.workers.http_service import until

REPOSITORY = Path(__file__).parents[2]
HERE = "127.0.0.1"


class Program:
    """A Python program that is started again after each end."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._words = folder, words
        paths = os.pathsep.join((str(REPOSITORY / "operator"), str(REPOSITORY)))
        self._environment = {**os.environ, "PYTHONPATH": paths, **environment}
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._words, env=self._environment, stderr=log, stdout=log
            )

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    async def ended(self, seconds: float) -> int:
        """Wait until it ends by itself, and return its exit code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def kill(self) -> None:
        """End it at once and start it again."""
        await self.end(signal.SIGKILL)
        await self.start()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


class Pod(Program):
    """A courier, or what `words` say, with the files a pod would have."""

    def __init__(
        self,
        folder: Path,
        told: CourierAssignment | ReplayAssignment,
        *words: str,
        name: str = "pod-0",
        **more: str,
    ) -> None:
        environment = {
            "DLQ_ASSIGNMENT_DIR": str(folder),
            "DLQ_SECRETS_DIR": str(folder),
            "DLQ_TERMINATION_LOG": str(folder / "termination"),
            "DLQ_HEALTH_PORT": "0",
            "POD_NAME": name,
        } | more
        super().__init__(folder, *(words or ("deadletter", "courier")), **environment)
        (folder / "assignment.json").write_text(told.model_dump_json(by_alias=True, exclude_none=True))
        (folder / "live.json").write_text("{}")


@dataclass
class Entry:
    """One answer of the shop."""

    number: int
    attempt: int
    key: str
    status: int


@dataclass
class DeliveryLog:
    """What the shop wrote down, read as it grows."""

    file: Path
    entries: list[Entry] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    _read: int = 0

    def look(self) -> int:
        """How many different messages were delivered so far."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode().splitlines():
                number, attempt, key, status = line.split()
                self.entries.append(Entry(int(number), int(attempt), key, int(status)))
                if status == "200":
                    self.delivered.add(int(number))
        return len(self.delivered)

    def check_order(self, is_parked: Callable[[int], bool] = recording_service.is_put_off) -> None:
        """Of each key, what was never parked was taken in the order it was sent; a parked letter lets others pass."""
        taken: dict[str, dict[int, None]] = {}
        for one in self.entries:
            is_inline = one.attempt == (2 if recording_service.is_flaky(one.number) else 1)
            if one.status == 200 and is_inline and not is_parked(one.number):
                taken.setdefault(one.key, {}).setdefault(one.number)
        for key, numbers in taken.items():
            assert list(numbers) == sorted(numbers), f"{key} out of order"


class RecordingService(Program):
    """The service of `tests.workers.recording_service`, always at the same port."""

    def __init__(self, folder: Path, delay_ms: int = 0) -> None:
        self._kept = socket.socket()  # bound and deaf: nobody else takes the port between an end and a start
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._kept.bind((HERE, 0))
        self.port = self._kept.getsockname()[1]
        self.deliveries = DeliveryLog(folder / "book")
        super().__init__(
            folder, "tests.workers.recording_service", str(self.port), str(self.deliveries.file), str(delay_ms)
        )

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self.port}/"

    async def start(self) -> None:
        await super().start()
        await until(lambda: ports.answers(HERE, self.port))

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        return await super().end(number)
