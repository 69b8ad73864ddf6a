"""How fast letters may leave, and how many at once.

Tokens by the second are handed out before a batch begins, never inside a transaction.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MAX_WAIT_S = 0.5


class TokenBucket:
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
            enough = min(wanted, max(1.0, rate * MAX_WAIT_S))
            if self._tokens >= enough:
                granted = min(wanted, int(self._tokens))
                self._tokens -= granted
                return granted
            await asyncio.sleep(min(MAX_WAIT_S, (enough - self._tokens) / rate))
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


class InFlightLimit:
    """Letters on their way at once, over all partitions; how many may be is asked each time, None is any number."""

    def __init__(self, most: Callable[[], int | None]) -> None:
        self._most = most
        self._under_way = 0
        self._landed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, letters: int) -> AsyncIterator[None]:
        """Inside, they are on their way; alone, however many they are."""
        async with self._landed:
            await self._landed.wait_for(lambda: self._has_room(letters))
            self._under_way += letters
        try:
            yield
        finally:
            self._under_way -= letters
            async with self._landed:
                self._landed.notify_all()

    def _has_room(self, letters: int) -> bool:
        most = self._most()
        return most is None or not self._under_way or self._under_way + letters <= most
