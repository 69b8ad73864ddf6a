"""Pause a redrive while more letters return than leave, or while the error budget of the policy is spent."""

from collections import deque

from deadletter.core.circuit_breaker import ErrorBudget
from deadletter.core.policy import BudgetSettings
from deadletter.core.reasons import Reason

WINDOW_MS = 60_000
MIN_RETURNED = 20


class FeedbackGuard:
    """Counts letters sent and letters returned in the last minute."""

    def __init__(self, budget: BudgetSettings | None) -> None:
        self._budget = ErrorBudget(budget)
        self._sent: deque[tuple[int, int]] = deque()
        self._returned: deque[tuple[int, int]] = deque()

    def record_failure(self, at: int) -> None:
        """Spend the error budget for a letter that failed at this time."""
        self._budget.spend(at)

    def record_sent(self, letters: int, now: int) -> None:
        """Count letters that were sent back."""
        _record(self._sent, letters, now)

    def record_returned(self, letters: int, now: int) -> None:
        """Count letters that failed again after they were sent back."""
        _record(self._returned, letters, now)

    def pause_reason(self, now: int) -> str:
        """Return the Reason to pause for, empty if there is none."""
        if self._budget.is_spent(now):
            return Reason.ErrorBudgetSpent
        returned = _count_recent(self._returned, now)
        is_feedback = returned >= MIN_RETURNED and returned > _count_recent(self._sent, now)
        return Reason.FailureShareExceeded if is_feedback else ""


def _record(events: deque[tuple[int, int]], letters: int, now: int) -> None:
    """Keep one entry for each time: after a restart a box full of returned letters is read at once."""
    before = events.pop()[1] if events and events[-1][0] == now else 0
    events.append((now, before + letters))


def _count_recent(events: deque[tuple[int, int]], now: int) -> int:
    while events and events[0][0] <= now - WINDOW_MS:
        events.popleft()
    return sum(letters for _, letters in events)
