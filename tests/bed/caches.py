"""Entries of the cache, made in a temporary directory and renamed, so that an entry is always complete."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bed import places


def get_or_make(entry: Path, what: str, estimate: str, make: Callable[[Path], None]) -> Path:
    """Return the cache entry, made now if it is missing; parallel runs wait for the process that makes it."""
    if entry.exists():
        return entry
    with places.locked(places.cache() / "locks" / entry.name):
        if entry.exists():
            return entry
        began = time.monotonic()
        print_progress(f"making {what} (about {estimate} on 2 cores, kept in {entry.parent})")
        aside = entry.with_name(f".{entry.name}.{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            make(aside)
            aside.rename(entry)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        print_progress(f"{what} made in {time.monotonic() - began:.0f} s")
    return entry


def print_progress(text: str) -> None:
    """Print one line of progress on stderr."""
    print(f"bed: {text}", file=sys.stderr, flush=True)
