"""The cgroup of a bed in every hierarchy; the kubelet creates all pods below it."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Return the mounted hierarchies: one with cgroup v2, one per controller with v1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted({Path(words[1]).resolve() for words in mounts if words[2] in ("cgroup", "cgroup2")})


def create(name: str) -> None:
    """Create the cgroup in every hierarchy with all resources and controllers of its parent."""
    for hierarchy in hierarchies():
        made = hierarchy / name
        made.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / file).exists() and (made / file).exists():
                (made / file).write_text((hierarchy / file).read_text())
    if (ROOT / "cgroup.controllers").exists():
        wanted = (ROOT / "cgroup.controllers").read_text().split()
        for place in (ROOT, ROOT / name):
            (place / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in wanted))


def exists(name: str) -> bool:
    """True if any hierarchy has the cgroup."""
    return any((hierarchy / name).exists() for hierarchy in hierarchies())


def destroy(name: str, seconds: float = 30) -> None:
    """Kill all processes in the cgroup and remove it with everything below."""
    end = time.monotonic() + seconds
    while exists(name) and time.monotonic() < end:
        for hierarchy in hierarchies():
            _clear(hierarchy / name)
        time.sleep(0.05)


def _clear(cgroup: Path) -> None:
    for place in [*_below(cgroup), cgroup]:
        for pid in _pids(place):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            place.rmdir()
        except OSError:
            continue


def _below(cgroup: Path) -> Iterator[Path]:
    for directory, folders, _ in os.walk(cgroup, topdown=False):
        yield from (Path(directory) / folder for folder in folders)


def _pids(cgroup: Path) -> list[int]:
    try:
        return [int(word) for word in (cgroup / "cgroup.procs").read_text().split() if word != "0"]
    except OSError:
        return []
