"""Couriers and their service in processes of their own, which a test may kill at any moment."""

import asyncio
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from deadletter.api.worker_config import CourierAssignment, ReplayAssignment
from tests.bed import ports
from tests.workers.http_service import until

REPOSITORY = Path(__file__).parents[2]
LOCALHOST = "127.0.0.1"


class Program:
    """A Python program that can be started again after each end."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._arguments = folder, arguments
        paths = os.pathsep.join((str(REPOSITORY / "operator"), str(REPOSITORY)))
        self._environment = {**os.environ, "PYTHONPATH": paths, **environment}
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._arguments, env=self._environment, stderr=log, stdout=log
            )

    async def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end and return the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    async def ended(self, seconds: float) -> int:
        """Wait until it ends by itself, and return its exit code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def kill(self) -> None:
        """Kill it and start it again."""
        await self.end(signal.SIGKILL)
        await self.start()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


class Pod(Program):
    """A courier, or the program that `arguments` name, with the files a pod would have."""

    def __init__(
        self,
        folder: Path,
        assignment: CourierAssignment | ReplayAssignment,
        *arguments: str,
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
        super().__init__(folder, *(arguments or ("deadletter", "courier")), **environment)
        (folder / "assignment.json").write_text(assignment.model_dump_json(by_alias=True, exclude_none=True))
        (folder / "live.json").write_text("{}")


@dataclass
class Delivery:
    """One request to the service and its response."""

    number: int
    attempt: int
    key: str
    status: int


@dataclass
class DeliveryLog:
    """The deliveries that the service recorded in its file, read as it grows."""

    file: Path
    entries: list[Delivery] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    _read: int = 0

    def refresh(self) -> int:
        """Read new entries and return how many different messages are delivered."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode().splitlines():
                number, attempt, key, status = line.split()
                self.entries.append(Delivery(int(number), int(attempt), key, int(status)))
                if status == "200":
                    self.delivered.add(int(number))
        return len(self.delivered)

    def check_order(self) -> None:
        """Check that messages of one key that were accepted at their first attempt were accepted in order.

        A message that failed may be parked, because at most half of the slots wait for retries; others of its key pass.
        """
        accepted: dict[str, dict[int, None]] = {}
        for one in self.entries:
            if one.status == 200 and one.attempt == 1:
                accepted.setdefault(one.key, {}).setdefault(one.number)
        for key, numbers in accepted.items():
            assert list(numbers) == sorted(numbers), f"{key} out of order"


class RecordingService(Program):
    """The service of `tests.workers.recording_service`, always at the same port."""

    def __init__(self, folder: Path, delay_ms: int = 0) -> None:
        self._reserved = socket.socket()  # bound without listening: no other process takes the port during a restart
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind((LOCALHOST, 0))
        self.port = self._reserved.getsockname()[1]
        self.deliveries = DeliveryLog(folder / "deliveries")
        module, file = "tests.workers.recording_service", str(self.deliveries.file)
        super().__init__(folder, module, str(self.port), file, str(delay_ms))

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.port}/"

    async def start(self) -> None:
        await super().start()
        await until(lambda: ports.answers(LOCALHOST, self.port))

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        return await super().end(number)
