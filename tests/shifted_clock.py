"""Shift the wall clock of one process by some minutes with libfaketime; its monotonic clock is not shifted."""

from pathlib import Path

from tests.bed import tools


def shifted_clock(minutes: int) -> dict[str, str]:
    """Return the environment variables of the process."""
    tools.need("faketime")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{minutes:+d}m",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }
