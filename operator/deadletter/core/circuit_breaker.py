"""Circuit breaker and error budget as pure state machines; the caller passes the time.

A courier passes the monotonic time, so a stepped wall clock changes nothing. A redriver passes the times of failures.
"""

from collections import deque
from collections.abc import Hashable
from enum import Enum

from deadletter.core.policy import BreakerSettings, BudgetSettings

MAX_PROBES = 5


class ServiceHealth(Enum):
    """State of the service as one delivery attempt shows it."""

    Up = "up"  # it accepted the message, or rejected this one with a 4xx
    Failed = "failed"  # it responded with an error that the message may have caused, such as 500
    Down = "down"  # it was not reached: connection refused or lost, timeout, 502 to 504


class CircuitBreaker:
    """Stop deliveries while a service is down: Closed -> Open -> HalfOpen -> Closed.

    The first two rules below judge the service, not the messages: retries of bad messages alone do not open it.

    A closed circuit opens when
    - `consecutive` different messages in a row were Down, retries included; any response of the service itself, even a
      500, starts the count again;
    - at least `failure_share` percent of the last `window` first attempts failed;
    - none of the last `window` attempts, retries included, succeeded.

    After `open_for` up to MAX_PROBES probes are sent at once. One success closes the circuit. If no pending probe can
    succeed any more, the circuit opens again.

    Retries of bad messages alone can trigger the third rule. Fresh messages then need not wait for `open_for`: they are
    sent as probes, MAX_PROBES at a time; once `window` first attempts have failed, the circuit waits for `open_for`.
    Any success closes it.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self.state = "Closed"
        self.open_until = 0
        self.times_opened = 0
        self._first_results: deque[bool] = deque()  # the last `window` first attempts, True for a failed one
        self._failed_firsts = 0
        self._unreached: set[Hashable] = set()  # messages in a row that did not reach the service
        self._attempts = 0  # failed attempts since the last success
        self._first_attempts = 0  # first attempts among them
        self._early_probes = 0  # fresh messages that may still be sent before `open_until`
        self._pending_probes = 0
        self._failed_probes = 0  # in this round

    def may_deliver(self) -> bool:
        """True if messages are delivered as usual; only a success closes an open circuit, time does not."""
        return self.state == "Closed"

    def may_probe(self, now: int, *, is_fresh: bool) -> bool:
        """True if one probe may be sent now; a result that is not recorded is given up after `open_for`."""
        if self.state == "Closed":
            return False
        if now >= self.open_until:
            self.state = "HalfOpen"
            self.open_until = now + self.settings.open_for
            self._pending_probes = self._failed_probes = 0
        in_round = self.state == "HalfOpen" and not self._failed_probes
        if self._pending_probes >= MAX_PROBES or not (
            in_round or (is_fresh and self._early_probes > self._pending_probes)
        ):
            return False
        self._pending_probes += 1
        return True

    def record(self, health: ServiceHealth, message: Hashable, now: int, *, is_first: bool) -> None:
        """Record a delivery that started while the circuit was closed.

        If the circuit has opened since, the result counts only if it is a success and only retries are known to fail.
        """
        if not self.settings.enabled:
            return
        if self.state != "Closed":
            if health is ServiceHealth.Up and self._early_probes:
                self._close()
            return
        self._count(health, message, is_first)
        if len(self._unreached) >= self.settings.consecutive or self._is_share_exceeded():
            self._open(now)
        elif self._attempts >= self.settings.window:
            self._open(now, early_probes=self.settings.window - self._first_attempts)

    def _count(self, health: ServiceHealth, message: Hashable, is_first: bool) -> None:
        if health is ServiceHealth.Down:
            self._unreached.add(message)
        else:
            self._unreached.clear()
        if is_first:
            self._record_first_attempt(health is not ServiceHealth.Up)
        if health is ServiceHealth.Up:
            self._attempts = self._first_attempts = 0
        else:
            self._attempts += 1
            self._first_attempts += is_first

    def _record_first_attempt(self, is_failed: bool) -> None:
        if len(self._first_results) == self.settings.window:
            self._failed_firsts -= self._first_results.popleft()
        self._first_results.append(is_failed)
        self._failed_firsts += is_failed

    def _is_share_exceeded(self) -> bool:
        window = self.settings.window
        return len(self._first_results) == window and self._failed_firsts * 100 >= self.settings.failure_share * window

    def record_probe(self, health: ServiceHealth, now: int, *, is_fresh: bool) -> None:
        """Record the result of a probe, however late it arrives."""
        if self.state == "Closed":
            return
        if health is ServiceHealth.Up:
            self._close()
            return
        self._pending_probes = max(self._pending_probes - 1, 0)
        self._failed_probes += 1
        if is_fresh:
            self._early_probes = 0 if health is ServiceHealth.Down else max(self._early_probes - 1, 0)
        if not self._pending_probes and self.state == "HalfOpen":
            self._open(now, early_probes=self._early_probes)

    def _open(self, now: int, early_probes: int = 0) -> None:
        self.state = "Open"
        self.times_opened += 1
        self.open_until = now + self.settings.open_for
        self._early_probes = early_probes
        self._pending_probes = self._failed_probes = 0

    def _close(self) -> None:
        self.state = "Closed"
        self.open_until = 0
        self._first_results.clear()
        self._failed_firsts = 0
        self._unreached.clear()
        self._attempts = self._first_attempts = 0
        self._early_probes = self._pending_probes = self._failed_probes = 0


class ErrorBudget:
    """Count dead letters in a moving window; without settings the budget is never spent.

    A caller that checks `is_spent` before each burial buries at most `letters` messages in any window.
    """

    def __init__(self, settings: BudgetSettings | None) -> None:
        self.settings = settings
        self._spent: deque[int] = deque(maxlen=settings.letters if settings else 0)

    def spend(self, now: int) -> None:
        """Count one dead letter."""
        self._spent.append(now)

    def is_spent(self, now: int) -> bool:
        """True if the window holds as many dead letters as the budget allows."""
        if self.settings is None or len(self._spent) < self.settings.letters:
            return False
        return self._spent[0] > now - self.settings.per
