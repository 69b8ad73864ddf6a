"""Inline retries: claims held in memory until their next attempt, at most half of the delivery slots."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deadletter.brokers.types import Claim
from deadletter.core.letters import Letter


@dataclass(slots=True, eq=False)
class PendingRetry:
    """A claim, the letter it becomes if it is parked instead, and when it is due."""

    claim: Claim
    letter: Letter
    due_at: int


class InlineRetries:
    """Timers of pending retries; `retry` is called with a claim when it is due."""

    def __init__(self, limit: int, retry: Callable[[Claim], None]) -> None:
        self._limit = max(limit, 1)
        self._retry = retry
        self._timers: dict[PendingRetry, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, pending: PendingRetry, now: int, ready: int) -> PendingRetry | None:
        """Schedule a retry. If the limit is exceeded, remove and return the one due last, which is to be parked.

        `ready` retries are due already and wait for a delivery slot; they count towards the limit.
        """
        loop = asyncio.get_running_loop()
        self._timers[pending] = loop.call_later(max(pending.due_at - now, 0) / 1000, self._on_due, pending)
        if len(self._timers) + ready <= self._limit:
            return None
        last = max(self._timers, key=lambda one: one.due_at)
        self._timers.pop(last).cancel()
        return last

    def _on_due(self, pending: PendingRetry) -> None:
        del self._timers[pending]
        self._retry(pending.claim)

    def cancel_all(self) -> None:
        """Cancel all timers; the claims stay unsettled."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
