"""How fast letters may leave: tokens by the second, handed out before a batch begins, never inside a transaction."""

import asyncio
import time
from collections.abc import Callable

GATHER_S = 0.5


class Pace:
    """A bucket of tokens shared by all partitions; the rate may change at any time, None is unlimited."""

    def __init__(
        self, rate: Callable[[], int | None], stop: asyncio.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = clock
        self._tokens = 0.0
        self._filled = clock()

    async def take(self, wanted: int) -> int:
        """Some tokens, at most `wanted`: what half a second brings; none when the worker should stop."""
        while not self._stop.is_set():
            rate = self._rate()
            if rate is None:
                self._tokens, self._filled = 0.0, self._clock()
                return wanted
            self._fill(rate)
            enough = min(wanted, max(1.0, rate * GATHER_S))
            if self._tokens >= enough:
                granted = min(wanted, int(self._tokens))
                self._tokens -= granted
                return granted
            await asyncio.sleep(min(GATHER_S, (enough - self._tokens) / rate))
        return 0

    def give_back(self, tokens: int) -> None:
        """Tokens that were not used; without a rate they were none."""
        if self._rate() is not None:
            self._tokens += tokens

    def _fill(self, rate: int) -> None:
        """At most what a second brings: a rate that was lowered holds at once."""
        now = self._clock()
        self._tokens = min(max(1.0, float(rate)), self._tokens + (now - self._filled) * rate)
        self._filled = now
