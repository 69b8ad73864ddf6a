"""Directories of the bed: programs in the cache directory, running beds in the state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def cache() -> Path:
    """Return the directory for everything that is built once: programs, jars, images, virtual environments."""
    return _home("XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """Return the directory of running beds and of logs of failed ones."""
    return _home("XDG_STATE_HOME", ".local/state")


def _home(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "dlq-operator"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock while the block runs; the kernel releases it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
