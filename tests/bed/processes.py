"""Programs of a bed: started in sessions of their own, identified by pid and start time, stopped only by these."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PART_VARIABLE = "DLQ_BED_PART"
BED_VARIABLE = "DLQ_BED"


class BedError(Exception):
    """A requirement of the bed is missing or a program did not start; the message names the remedy."""


@dataclass(frozen=True)
class Process:
    """One running program; the start time distinguishes it from a later one with the same pid."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """True if this process still runs; False for a zombie."""
        return _started(self.pid) == self.started

    def write(self, path: Path) -> None:
        """Record it for the process that removes the bed."""
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps(asdict(self)))
        aside.rename(path)


def current() -> Process:
    """Return this process."""
    return Process(os.getpid(), _started(os.getpid()) or 0)


def read(path: Path) -> Process | None:
    """Return the process recorded in a file."""
    try:
        return Process(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _started(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def start(name: str, command: Sequence[str | Path], bed: Path, env: dict[str, str] | None = None) -> Process:
    """Start a program of a bed in the background, with its output in the logs of the bed."""
    logs = bed / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    pids = bed / "pids"
    pids.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=bed,
            env={**os.environ, **(env or {}), PART_VARIABLE: f"{bed}:{name}"},
            preexec_fn=_raise_file_limit,
        )
    made = Process(child.pid, _started(child.pid) or 0)
    made.write(pids / name)
    return made


def _raise_file_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_until(what: str, condition: Callable[[], bool], seconds: float, of: Process | None = None) -> None:
    """Poll until the condition holds; raise BedError after this time or when the process has ended."""
    end = time.monotonic() + seconds
    while not condition():
        if of is not None and not of.is_alive():
            raise BedError(f"{what}: the program ended; see its log.")
        if time.monotonic() > end:
            raise BedError(f"{what}: not ready after {seconds:.0f} s; see the logs.")
        time.sleep(0.05)


def find_of_bed(bed: Path, part: str = "") -> set[Process]:
    """Return all running processes of a bed or of one part, and descendants with the same environment variable."""
    found = _with_variable(f"{PART_VARIABLE}={bed}:{part}".encode(), exact=bool(part))
    recorded = [bed / "pids" / part] if part else list((bed / "pids").glob("*"))
    return found | {process for path in recorded if (process := read(path)) and process.is_alive()}


def find_users(bed: Path) -> set[Process]:
    """Return the processes that use a bed, without this process and its ancestors."""
    return {one for one in _with_variable(f"{BED_VARIABLE}={bed}".encode(), exact=True) if one.pid not in _ancestors()}


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _with_variable(wanted: bytes, exact: bool) -> set[Process]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _has_variable(entry, wanted, exact):
            started = _started(int(entry.name))
            if started is not None:
                found.add(Process(int(entry.name), started))
    return found


def _has_variable(entry: Path, wanted: bytes, exact: bool) -> bool:
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(value == wanted if exact else value.startswith(wanted) for value in variables)


def stop(processes: Iterable[Process], grace: float = 30) -> None:
    """Stop processes by SIGTERM, and kill those that do not end."""
    stopped = set(processes)
    send(stopped, signal.SIGTERM)
    if not _have_ended(stopped, grace):
        kill(stopped)


def kill(processes: Iterable[Process]) -> None:
    """Kill processes and return when they have ended."""
    killed = set(processes)
    send(killed, signal.SIGKILL)
    if not _have_ended(killed, 30):
        raise BedError(f"Processes {sorted(p.pid for p in killed if p.is_alive())} do not end even when killed.")


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to the processes that still run."""
    for process in processes:
        if process.is_alive():
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def _have_ended(processes: set[Process], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(process.is_alive() for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
