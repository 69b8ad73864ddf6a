"""The wall clock, for times that are stored or shown, and the monotonic clock, for durations.

An administrator or NTP may step the wall clock. Code that a test moves through time takes a clock as an argument.
"""

import time


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a time in milliseconds that is never stepped; only differences between two of them mean something."""
    return time.monotonic_ns() // 1_000_000
