"""Where the bed keeps things: programs in the cache, running beds in the state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def cache() -> Path:
    """The directory of everything that is made once: programs, jars, images, virtual environments."""
    return _home("XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """The directory of running beds and of the logs of failed ones."""
    return _home("XDG_STATE_HOME", ".local/state")


def _home(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "dlq-operator"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
