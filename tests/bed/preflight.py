"""What must be true before anything is changed; each objection is one line with its remedy."""

import os
import shutil
import subprocess

from tests.bed import places, tools
from tests.bed.processes import BedError

_LEAST_DISK = 5 * 1024**3


def root(for_what: str) -> None:
    """The node needs namespaces, mounts and cgroups."""
    if os.geteuid() != 0:
        raise BedError(f"{for_what} needs root; run it with sudo (with Docker: make bed-up PROVIDER=kind).")


def disk() -> None:
    """Programs, images and brokers take a few gigabytes."""
    for place in (places.cache(), places.state()):
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
        if free < _LEAST_DISK:
            raise BedError(f"Only {free / 1024**3:.1f} GB free at {place}; 5 GB are needed: free some, or set "
                           "XDG_CACHE_HOME and XDG_STATE_HOME to another disk.")  # fmt: skip


def docker() -> None:
    """Kind needs an engine that answers."""
    found = tools.find("docker")
    if not found or subprocess.run([found, "info"], capture_output=True, timeout=60, check=False).returncode != 0:
        raise BedError("No Docker engine answers; start one, or leave PROVIDER=kind out to do without.")
