"""Limit how fast letters are published, and how many at once.

Tokens are taken before a batch begins, never inside a transaction.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MAX_WAIT_S = 0.5


class TokenBucket:
    """A token bucket shared by all partitions. The rate may change at any time; None is unlimited."""

    def __init__(
        self, rate: Callable[[], int | None], stop: asyncio.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = clock
        self._tokens = 0.0
        self._filled_at = clock()

    async def acquire(self, wanted: int) -> int:
        """Take at most `wanted` tokens: as many as half a second provides. Returns 0 when the worker should stop."""
        while not self._stop.is_set():
            rate = self._rate()
            if rate is None:
                self._tokens, self._filled_at = 0.0, self._clock()
                return wanted
            self._fill(rate)
            enough = min(wanted, max(1.0, rate * MAX_WAIT_S))
            if self._tokens >= enough:
                granted = min(wanted, int(self._tokens))
                self._tokens -= granted
                return granted
            await asyncio.sleep(min(MAX_WAIT_S, (enough - self._tokens) / rate))
        return 0

    def refund(self, tokens: int) -> None:
        """Give back unused tokens; without a rate there were none."""
        if self._rate() is not None:
            self._tokens += tokens

    def _fill(self, rate: int) -> None:
        # At most the tokens of one second, so that a lowered rate takes effect at once.
        now = self._clock()
        self._tokens = min(max(1.0, float(rate)), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now


class InFlightLimit:
    """Limits the letters in flight over all partitions. The limit may change at any time; None is unlimited."""

    def __init__(self, limit: Callable[[], int | None]) -> None:
        self._limit = limit
        self._in_flight = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, letters: int) -> AsyncIterator[None]:
        """Count letters as in flight while the block runs. A batch above the limit runs alone."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(letters))
            self._in_flight += letters
        try:
            yield
        finally:
            self._in_flight -= letters
            async with self._changed:
                self._changed.notify_all()

    def _fits(self, letters: int) -> bool:
        limit = self._limit()
        return limit is None or not self._in_flight or self._in_flight + letters <= limit
