"""When to wait: more letters return than leave, or the policy's error budget is spent."""

from collections import deque

from deadletter.core.circuit_breaker import ErrorBudget
from deadletter.core.policy import BudgetSettings
from deadletter.core.reasons import Reason

WINDOW_MS = 60_000
MIN_RETURNED = 20


class FeedbackGuard:
    """Counts what leaves and what returns in the last minute."""

    def __init__(self, budget: BudgetSettings | None) -> None:
        self._budget = ErrorBudget(budget)
        self._left: deque[tuple[int, int]] = deque()
        self._returned: deque[tuple[int, int]] = deque()

    def record_failure(self, at: int) -> None:
        """A letter died then."""
        self._budget.spend(at)

    def record_sent(self, letters: int, now: int) -> None:
        """So many were sent back."""
        _note(self._left, letters, now)

    def record_returned(self, letters: int, now: int) -> None:
        """So many came again."""
        _note(self._returned, letters, now)

    def pause_reason(self, now: int) -> str:
        """The reason to wait, or nothing."""
        if self._budget.is_spent(now):
            return Reason.ErrorBudgetSpent
        returned = _recent(self._returned, now)
        return Reason.FailureShareExceeded if returned >= MIN_RETURNED and returned > _recent(self._left, now) else ""


def _note(flow: deque[tuple[int, int]], letters: int, now: int) -> None:
    """One entry a moment: a box full of returns, read after a restart, takes no room."""
    before = flow.pop()[1] if flow and flow[-1][0] == now else 0
    flow.append((now, before + letters))


def _recent(flow: deque[tuple[int, int]], now: int) -> int:
    while flow and flow[0][0] <= now - WINDOW_MS:
        flow.popleft()
    return sum(letters for _, letters in flow)
