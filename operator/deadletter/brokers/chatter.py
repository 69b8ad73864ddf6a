"""What a driver says while its broker is away: the same few lines, ten times a second and connection."""

import logging
import time
from collections.abc import Callable

DRIVERS = ("aiokafka", "redis")
AGAIN_S = 10.0
MOST = 1_000


class Sparing(logging.Filter):
    """Lets each line of a driver through once in ten seconds, and everything else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Lines are known by their text before values are put in."""
        if not record.name.startswith(DRIVERS):
            return True
        line, now = (record.name, str(record.msg)), self._clock()
        if now - self._said.get(line, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[line] = now
        return True
