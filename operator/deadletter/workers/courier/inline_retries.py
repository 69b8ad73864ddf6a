"""Inline waits: claims held in memory until their next try. Never more than half of the slots are held for one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deadletter.brokers.types import Claim
from deadletter.core.letters import Letter


@dataclass(slots=True, eq=False)
class PendingRetry:
    """A claim, the letter it would be if it were parked, and when it goes again."""

    claim: Claim
    letter: Letter
    at: int


class InlineRetries:
    """Who waits, and until when."""

    def __init__(self, most: int, due: Callable[[Claim], None]) -> None:
        self._most = max(most, 1)
        self._due = due
        self._timers: dict[PendingRetry, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._timers)

    def add(self, wait: PendingRetry, now: int, ready: int) -> PendingRetry | None:
        """Let it wait. Too many, counting the `ready` whose time has come: the longest comes back, to be parked."""
        loop = asyncio.get_running_loop()
        self._timers[wait] = loop.call_later(max(wait.at - now, 0) / 1000, self._ring, wait)
        if len(self._timers) + ready <= self._most:
            return None
        longest = max(self._timers, key=lambda one: one.at)
        self._timers.pop(longest).cancel()
        return longest

    def _ring(self, wait: PendingRetry) -> None:
        del self._timers[wait]
        self._due(wait.claim)

    def clear(self) -> None:
        """Nobody waits any more; what they waited for is left unsettled."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
