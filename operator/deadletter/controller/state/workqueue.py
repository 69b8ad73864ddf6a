"""Work queue of a level-based controller, like the one of client-go: each item at most once, rate-limited retries."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from deadletter import metrics

FIRST_RETRY_DELAY_S = 0.5
MAX_DOUBLINGS = 10
Item = TypeVar("Item", bound=Hashable)


class WorkQueue(Generic[Item]):
    """A queue of keys; one that is added while it is being processed is processed once more afterwards."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Item] = asyncio.Queue()
        self._waiting: set[Item] = set()
        self._processing: set[Item] = set()
        self._added_while_processing: set[Item] = set()
        self._timers: dict[Item, asyncio.TimerHandle] = {}
        self._failures: dict[Item, int] = {}

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return len(self._waiting)

    @property
    def failing(self) -> int:
        """The number of items whose last pass asked for a rate-limited retry."""
        return len(self._failures)

    def add(self, item: Item) -> None:
        """Process the item as soon as a worker is free."""
        if (timer := self._timers.pop(item, None)) is not None:
            timer.cancel()
        if item in self._processing:
            self._added_while_processing.add(item)
        elif item not in self._waiting:
            self._waiting.add(item)
            self._ready.put_nowait(item)
            metrics.RECONCILE_QUEUE_LENGTH.set(len(self._waiting))

    def add_after(self, item: Item, seconds: float) -> None:
        """Add the item after a delay, unless it is added earlier; of two delays the shorter counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        is_added = item in self._waiting or item in self._added_while_processing
        if is_added or (timer and timer.when() <= loop.time() + seconds):
            return
        if timer is not None:
            timer.cancel()
        self._timers[item] = loop.call_later(seconds, self.add, item)

    def add_rate_limited(self, item: Item, max_delay_s: float) -> None:
        """Add the item after a delay that doubles with each failure up to `max_delay_s`."""
        failures = self._failures[item] = min(self._failures.get(item, 0) + 1, MAX_DOUBLINGS)
        self.add_after(item, min(max_delay_s, FIRST_RETRY_DELAY_S * 2 ** (failures - 1)))

    def forget(self, item: Item) -> None:
        """Reset the failures of an item; its next retry starts with the shortest delay."""
        self._failures.pop(item, None)

    def remove(self, item: Item) -> None:
        """Drop the timer and the failures of a deleted object."""
        with suppress(KeyError):
            self._timers.pop(item).cancel()
        self.forget(item)

    async def run(self, reconcile: Callable[[Item], Awaitable[None]]) -> None:
        """Process items until cancelled, as one worker; `reconcile` handles its own errors."""
        while True:
            item = await self._ready.get()
            self._waiting.discard(item)
            metrics.RECONCILE_QUEUE_LENGTH.set(len(self._waiting))
            self._processing.add(item)
            try:
                await reconcile(item)
            finally:
                self._processing.discard(item)
                if item in self._added_while_processing:
                    self._added_while_processing.discard(item)
                    self.add(item)
