"""Circuit breaker and error budget: pure state machines, told the time."""

from collections import deque

from deadletter.core.policy import BreakerSettings, BudgetSettings


class Breaker:
    """Closed -> Open by the share of failures or by Network failures in a row -> HalfOpen, one probe -> Closed.

    What is recorded while it is open does not count: those deliveries were already under way.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self.state = "Closed"
        self.opens_until = 0
        self._outcomes: deque[bool] = deque(maxlen=settings.window)
        self._in_a_row = 0

    def may_deliver(self, now: int) -> bool:
        """May messages be delivered as usual? The time does not matter: only a probe closes an open circuit."""
        del now
        return self.state == "Closed"

    def may_probe(self, now: int) -> bool:
        """May one probe go out now? True at most once until it is recorded, or until it is given up for lost."""
        if self.state == "Closed" or now < self.opens_until:
            return False
        self.state = "HalfOpen"
        self.opens_until = now + self.settings.open_for
        return True

    def record(self, ok: bool, network: bool, now: int) -> None:
        """One delivery ended; `network`: it failed before the service could answer."""
        if not self.settings.enabled or self.state == "Open":
            return
        if self.state == "HalfOpen":
            self._close() if ok else self._open(now)
            return
        self._outcomes.append(ok)
        self._in_a_row = self._in_a_row + 1 if network and not ok else 0
        if self._in_a_row >= self.settings.consecutive or self._share_exceeded():
            self._open(now)

    def _share_exceeded(self) -> bool:
        outcomes = self._outcomes
        if len(outcomes) < self.settings.window:
            return False
        return outcomes.count(False) * 100 >= self.settings.failure_share * len(outcomes)

    def _open(self, now: int) -> None:
        self.state = "Open"
        self.opens_until = now + self.settings.open_for

    def _close(self) -> None:
        self.state = "Closed"
        self.opens_until = 0
        self._outcomes.clear()
        self._in_a_row = 0


class ErrorBudget:
    """Counts dead letters in a moving window; without settings it is never spent.

    Who asks before each burial buries at most as many in any window as it holds.
    """

    def __init__(self, settings: BudgetSettings | None) -> None:
        self.settings = settings
        self._spent: deque[int] = deque(maxlen=settings.letters if settings else 0)

    def spend(self, now: int) -> None:
        """One more letter died."""
        self._spent.append(now)

    def is_spent(self, now: int) -> bool:
        """Have as many letters died in the window as the budget allows?"""
        if self.settings is None or len(self._spent) < self.settings.letters:
            return False
        return self._spent[0] > now - self.settings.per
