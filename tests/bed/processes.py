"""Programs of a bed: started in sessions of their own, known by pid and start time, ended by nothing else."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MARK = "DLQ_BED_PART"
USED = "DLQ_BED"


class BedError(Exception):
    """Something the bed needs is missing or did not come up; the text names it and the remedy."""


@dataclass(frozen=True)
class Process:
    """One running program; the start time tells it from a later one with the same pid."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return _started(self.pid) == self.started

    def write(self, path: Path) -> None:
        """Keep it for whoever takes the bed down."""
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps(asdict(self)))
        aside.rename(path)


def this() -> Process:
    """The process we are."""
    return Process(os.getpid(), _started(os.getpid()) or 0)


def read(path: Path) -> Process | None:
    """The process recorded in a file."""
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
    """Start a program of a bed in the background, its output in the bed's logs."""
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
            env={**os.environ, **(env or {}), MARK: f"{bed}:{name}"},
            preexec_fn=_raise_file_limit,
        )
    made = Process(child.pid, _started(child.pid) or 0)
    made.write(pids / name)
    return made


def _raise_file_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_until(what: str, claim: Callable[[], bool], seconds: float, of: Process | None = None) -> None:
    """Poll until a claim holds; give up when the time is over or the process it is about has died."""
    end = time.monotonic() + seconds
    while not claim():
        if of is not None and not of.is_alive():
            raise BedError(f"{what}: the program ended; its log says why.")
        if time.monotonic() > end:
            raise BedError(f"{what}: not there after {seconds:.0f} s; the logs say why.")
        time.sleep(0.05)


def of_bed(bed: Path, part: str = "") -> set[Process]:
    """Every living process that was started for a bed (or one part of it), and its descendants that kept the mark."""
    found = _with_variable(f"{MARK}={bed}:{part}".encode(), exact=bool(part))
    recorded = [bed / "pids" / part] if part else list((bed / "pids").glob("*"))
    return found | {process for path in recorded if (process := read(path)) and process.is_alive()}


def users_of(bed: Path) -> set[Process]:
    """The tests that were started within a bed, without this process and those it descends from."""
    return {one for one in _with_variable(f"{USED}={bed}".encode(), exact=True) if one.pid not in _ancestors()}


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _with_variable(wanted: bytes, exact: bool) -> set[Process]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_marked(entry, wanted, exact):
            started = _started(int(entry.name))
            if started is not None:
                found.add(Process(int(entry.name), started))
    return found


def _is_marked(entry: Path, wanted: bytes, exact: bool) -> bool:
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(value == wanted if exact else value.startswith(wanted) for value in variables)


def stop(processes: Iterable[Process], grace: float = 30) -> None:
    """End processes politely; those that do not go are killed."""
    asked = set(processes)
    send(asked, signal.SIGTERM)
    if not _gone(asked, grace):
        kill(asked)


def kill(processes: Iterable[Process]) -> None:
    """End processes at once; returns when they are gone. What they kept is thrown away anyway."""
    doomed = set(processes)
    send(doomed, signal.SIGKILL)
    if not _gone(doomed, 30):
        raise BedError(f"Processes {sorted(p.pid for p in doomed if p.is_alive())} do not end even when killed.")


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to those processes that still live."""
    for process in processes:
        if process.is_alive():
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def _gone(processes: set[Process], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(process.is_alive() for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
