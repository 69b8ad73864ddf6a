"""The wall clock; code that a test moves through time takes a clock as an argument instead."""

import time


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
