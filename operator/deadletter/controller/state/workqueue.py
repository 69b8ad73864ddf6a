"""Objects that wait for a pass: each at most once, never two passes of one at a time, later when it must wait."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from deadletter import metrics

Thing = TypeVar("Thing", bound=Hashable)


class Work(Generic[Thing]):
    """A queue of things to look at. What is woken during its own pass is looked at once more after it."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Thing] = asyncio.Queue()
        self._waiting: set[Thing] = set()
        self._busy: set[Thing] = set()
        self._again: set[Thing] = set()
        self._timers: dict[Thing, asyncio.TimerHandle] = {}
        self._tries: dict[Thing, int] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def troubled(self) -> int:
        """How many did not go well when they were last looked at."""
        return len(self._tries)

    def wake(self, thing: Thing) -> None:
        """Look at it soon."""
        if (timer := self._timers.pop(thing, None)) is not None:
            timer.cancel()
        if thing in self._busy:
            self._again.add(thing)
        elif thing not in self._waiting:
            self._waiting.add(thing)
            self._ready.put_nowait(thing)
            metrics.WORK_DEPTH.set(len(self._waiting))

    def wake_in(self, thing: Thing, seconds: float) -> None:
        """Look at it after so long, unless it is woken before; of two waits the shorter counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(thing)
        if thing in self._waiting or thing in self._again or (timer and timer.when() <= loop.time() + seconds):
            return
        if timer is not None:
            timer.cancel()
        self._timers[thing] = loop.call_later(seconds, self.wake, thing)

    def backoff(self, thing: Thing, most: float) -> None:
        """Look at it again, later each time, at most `most` seconds away."""
        tries = self._tries[thing] = min(self._tries.get(thing, 0) + 1, 10)
        self.wake_in(thing, min(most, 0.5 * 2 ** (tries - 1)))

    def went_well(self, thing: Thing) -> None:
        """The next trouble begins with a short wait again."""
        self._tries.pop(thing, None)

    async def run(self, passes: Callable[[Thing], Awaitable[None]]) -> None:
        """One worker, for ever; `passes` takes care of its own errors."""
        while True:
            thing = await self._ready.get()
            self._waiting.discard(thing)
            metrics.WORK_DEPTH.set(len(self._waiting))
            self._busy.add(thing)
            try:
                await passes(thing)
            finally:
                self._busy.discard(thing)
                if thing in self._again:
                    self._again.discard(thing)
                    self.wake(thing)

    def forget(self, thing: Thing) -> None:
        """It is gone."""
        with suppress(KeyError):
            self._timers.pop(thing).cancel()
        self._tries.pop(thing, None)
