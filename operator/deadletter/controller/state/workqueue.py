"""Objects that wait for a pass: each at most once, never two passes of one at a time, later when it must wait."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from deadletter import metrics

Item = TypeVar("Item", bound=Hashable)


class WorkQueue(Generic[Item]):
    """A queue of things to look at. What is woken during its own pass is looked at once more after it."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Item] = asyncio.Queue()
        self._waiting: set[Item] = set()
        self._processing: set[Item] = set()
        self._added_while_processing: set[Item] = set()
        self._timers: dict[Item, asyncio.TimerHandle] = {}
        self._failures: dict[Item, int] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def failing(self) -> int:
        """How many did not go well when they were last looked at."""
        return len(self._failures)

    def add(self, item: Item) -> None:
        """Look at it soon."""
        if (timer := self._timers.pop(item, None)) is not None:
            timer.cancel()
        if item in self._processing:
            self._added_while_processing.add(item)
        elif item not in self._waiting:
            self._waiting.add(item)
            self._ready.put_nowait(item)
            metrics.WORK_DEPTH.set(len(self._waiting))

    def add_after(self, item: Item, seconds: float) -> None:
        """Look at it after so long, unless it is woken before; of two waits the shorter counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        if item in self._waiting or item in self._added_while_processing or (timer and timer.when() <= loop.time() + seconds):
            return
        if timer is not None:
            timer.cancel()
        self._timers[item] = loop.call_later(seconds, self.add, item)

    def add_rate_limited(self, item: Item, max_delay_s: float) -> None:
        """Look at it again, later each time, at most `most` seconds away."""
        tries = self._failures[item] = min(self._failures.get(item, 0) + 1, 10)
        self.add_after(item, min(max_delay_s, 0.5 * 2 ** (tries - 1)))

    def forget(self, item: Item) -> None:
        """The next trouble begins with a short wait again."""
        self._failures.pop(item, None)

    async def run(self, reconcile: Callable[[Item], Awaitable[None]]) -> None:
        """One worker, for ever; `passes` takes care of its own errors."""
        while True:
            item = await self._ready.get()
            self._waiting.discard(item)
            metrics.WORK_DEPTH.set(len(self._waiting))
            self._processing.add(item)
            try:
                await reconcile(item)
            finally:
                self._processing.discard(item)
                if item in self._added_while_processing:
                    self._added_while_processing.discard(item)
                    self.add(item)

    def remove(self, item: Item) -> None:
        """It is gone."""
        with suppress(KeyError):
            self._timers.pop(item).cancel()
        self._failures.pop(item, None)
