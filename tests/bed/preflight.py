"""Requirements that are checked before anything is changed; each error names its remedy."""

import os
import shutil
import subprocess

from tests.bed import places, tools
from tests.bed.processes import BedError

_MIN_FREE_BYTES = 5 * 1024**3


def require_root(for_what: str) -> None:
    """Require root: the node needs namespaces, mounts and cgroups."""
    if os.geteuid() != 0:
        raise BedError(f"{for_what} needs root; run it with sudo (with Docker: make bed-up PROVIDER=kind).")


def require_disk_space() -> None:
    """Require 5 GB of free disk space for programs, images and brokers."""
    for place in (places.cache(), places.state()):
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
        if free < _MIN_FREE_BYTES:
            raise BedError(f"Only {free / 1024**3:.1f} GB free at {place}; 5 GB are needed: free some, or set "
                           "XDG_CACHE_HOME and XDG_STATE_HOME to another disk.")  # fmt: skip


def require_docker() -> None:
    """Require a running Docker engine, which kind needs."""
    found = tools.find("docker")
    if not found or subprocess.run([found, "info"], capture_output=True, timeout=60, check=False).returncode != 0:
        raise BedError("No Docker engine answers. Start one, or remove PROVIDER=kind to run without Docker.")
