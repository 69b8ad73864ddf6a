"""Entries of the cache: made aside, then renamed, so that a half-made one is never seen."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bed import places


def kept(entry: Path, what: str, estimate: str, make: Callable[[Path], None]) -> Path:
    """The cache entry, made now if it is not there; parallel runs wait for the one who makes it."""
    if entry.exists():
        return entry
    with places.locked(places.cache() / "locks" / entry.name):
        if entry.exists():
            return entry
        began = time.monotonic()
        say(f"making {what} (about {estimate} on 2 cores, kept in {entry.parent})")
        aside = entry.with_name(f".{entry.name}.{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            make(aside)
            aside.rename(entry)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        say(f"{what} made in {time.monotonic() - began:.0f} s")
    return entry


def say(text: str) -> None:
    """One line of progress for the person who waits."""
    print(f"bed: {text}", file=sys.stderr, flush=True)
