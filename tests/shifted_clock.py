"""The wall clock of one process, off by some minutes: libfaketime, preloaded. Its monotonic clock is left alone."""

from pathlib import Path

from tests.bed import tools


def shifted_clock(minutes: int) -> dict[str, str]:
    """What such a process finds in its environment."""
    tools.need("faketime")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{minutes:+d}m",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }
