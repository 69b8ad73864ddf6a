"""Circuit breaker and error budget: pure state machines that are given the time."""

from collections import deque
from collections.abc import Hashable
from enum import Enum

from deadletter.core.policy import BreakerSettings, BudgetSettings

MAX_PROBES = 5


class ServiceHealth(Enum):
    """State of the service as one delivery shows it."""

    Up = "up"  # it took the message, or refused this one: a 4xx
    Failed = "failed"  # it answered with a failure that may be the fault of the message: a 500
    Down = "down"  # it was not reached: connection refused or lost, timeout, 502 to 504


class CircuitBreaker:
    """Judges a service by its answers, not by how often bad messages are retried. Closed -> Open -> HalfOpen -> Closed.

    A closed circuit opens when
    - `consecutive` different messages in a row were Down, whatever attempt it was; any answer of the service itself,
      also a 500, ends the row;
    - of the last `window` first attempts at least `failure_share` percent failed;
    - the last `window` attempts of any kind had no success.

    After `open_for` up to five probes go out together. One success closes the circuit; when none of those that are
    out can succeed any more, it opens again.

    The third rule may be fulfilled by retries of bad messages alone. A fresh message then need not wait for
    `open_for`: fresh ones are probes at once, five at a time, until as many first attempts failed as `window` says,
    and any success closes the circuit.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self.state = "Closed"
        self.open_until = 0
        self.times_opened = 0  # how often
        self._firsts: deque[bool] = deque()  # the last `window` first attempts; True: it failed
        self._failed_firsts = 0
        self._row: set[Hashable] = set()
        self._attempts = 0  # since the last success
        self._first_attempts = 0  # of those
        self._early = 0  # fresh messages that may still be tried before `opens_until`
        self._out = 0  # probes without a result
        self._failed = 0  # probes of this round that failed

    def may_deliver(self) -> bool:
        """True if messages are delivered as usual; only a success closes an open circuit, not time."""
        return self.state == "Closed"

    def may_probe(self, now: int, *, is_fresh: bool) -> bool:
        """Give leave for one probe now; its result must be recorded, or it is given up after `open_for`."""
        if self.state == "Closed":
            return False
        if now >= self.open_until:
            self.state = "HalfOpen"
            self.open_until = now + self.settings.open_for
            self._out = self._failed = 0
        in_round = self.state == "HalfOpen" and not self._failed
        if self._out >= MAX_PROBES or not (in_round or (is_fresh and self._early > self._out)):
            return False
        self._out += 1
        return True

    def record(self, sign: ServiceHealth, message: Hashable, now: int, *, is_first: bool) -> None:
        """Take note of a delivery that was started while the circuit was closed.

        One that ends while it is open does not count, but for a success where only retries are known to fail.
        """
        if not self.settings.enabled:
            return
        if self.state != "Closed":
            if sign is ServiceHealth.Up and self._early:
                self._close()
            return
        self._count(sign, message, is_first)
        if len(self._row) >= self.settings.consecutive or self._is_share_exceeded():
            self._open(now)
        elif self._attempts >= self.settings.window:
            self._open(now, early=self.settings.window - self._first_attempts)

    def _count(self, sign: ServiceHealth, message: Hashable, is_first: bool) -> None:
        if sign is ServiceHealth.Down:
            self._row.add(message)
        else:
            self._row.clear()
        if is_first:
            self._count_first(sign is not ServiceHealth.Up)
        if sign is ServiceHealth.Up:
            self._attempts = self._first_attempts = 0
        else:
            self._attempts += 1
            self._first_attempts += is_first

    def _count_first(self, is_failed: bool) -> None:
        if len(self._firsts) == self.settings.window:
            self._failed_firsts -= self._firsts.popleft()
        self._firsts.append(is_failed)
        self._failed_firsts += is_failed

    def _is_share_exceeded(self) -> bool:
        window = self.settings.window
        return len(self._firsts) == window and self._failed_firsts * 100 >= self.settings.failure_share * window

    def record_probe(self, sign: ServiceHealth, now: int, *, is_fresh: bool) -> None:
        """Take note of the result of a probe, however late it comes."""
        if self.state == "Closed":
            return
        if sign is ServiceHealth.Up:
            self._close()
            return
        self._out = max(self._out - 1, 0)
        self._failed += 1
        if is_fresh:
            self._early = 0 if sign is ServiceHealth.Down else max(self._early - 1, 0)
        if not self._out and self.state == "HalfOpen":
            self._open(now, early=self._early)

    def _open(self, now: int, early: int = 0) -> None:
        self.state = "Open"
        self.times_opened += 1
        self.open_until = now + self.settings.open_for
        self._early = early
        self._out = self._failed = 0

    def _close(self) -> None:
        self.state = "Closed"
        self.open_until = 0
        self._firsts.clear()
        self._failed_firsts = 0
        self._row.clear()
        self._attempts = self._first_attempts = 0
        self._early = self._out = self._failed = 0


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
