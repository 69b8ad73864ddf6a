"""May the courier deliver now, and if not, why? Everything that pauses it comes together here.

In the order a user should hear it: the gate of `live.json` (capacity, suspend), a fault of the target (address, DNS,
TLS), a box that refuses, the open circuit, the spent error budget. A fault lets one probe out at a time, an open
circuit up to five, each time with other messages; what fails meanwhile does not count as an attempt. One exception: a
probe on which the application itself broke (500, not 502 to 504) counts for its message. Otherwise a queue that starts
with nothing but bad messages would never move; an application that is broken as a whole costs one attempt a probe.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from deadletter.core.circuit_breaker import CircuitBreaker, ErrorBudget, ServiceHealth
from deadletter.core.policy import Policy
from deadletter.core.reasons import Reason
from deadletter.workers.courier.key_ordering import KeyOrderedQueue
from deadletter.workers.delivery.outcome import DeliveryOutcome

INITIAL_FAULT_PAUSE_MS = 1_000
MAX_FAULT_PAUSE_MS = 30_000


class Permit(Enum):
    """Leave to deliver."""

    Usual = "usual"
    Probe = "probe"


@dataclass(slots=True)
class TargetFault:
    """Trouble of the target that every message would meet."""

    reason: str
    message: str
    wait: int
    until: int


class Gate:
    """The state of all that pauses; told the time, it sleeps never."""

    def __init__(self, policy: Policy, paused: Callable[[], str] = str) -> None:
        self.breaker = CircuitBreaker(policy.breaker)
        self.budget = ErrorBudget(policy.budget)
        self._asked = paused
        self._fault: TargetFault | None = None
        self._refusals: dict[int, tuple[str, str]] = {}

    def why(self, now: int) -> tuple[str, str]:
        """Reason and sentence of the pause; nothing when it is open."""
        asked = self._asked()
        if asked:
            return asked, "paused by the operator"
        if self._fault is not None:
            return self._fault.reason, self._fault.message
        if self._refusals:
            return next(iter(self._refusals.values()))
        if not self.breaker.may_deliver():
            return Reason.CircuitOpen, "deliveries fail; a few probes at a time until the service takes one"
        if self.budget.is_spent(now):
            return Reason.ErrorBudgetSpent, "as many letters died as the error budget allows"
        return "", ""

    def ask(self, now: int, lanes: KeyOrderedQueue) -> Permit | None:
        """Leave for one delivery of what may go now."""
        reason, _ = self.why(now)
        if not reason:
            return Permit.Usual
        if self._fault is not None and reason == self._fault.reason:
            return self._probe_fault(now, self._fault)
        if reason == Reason.CircuitOpen and self.breaker.may_probe(now, is_fresh=lanes.has_fresh):
            return Permit.Probe
        return None

    @staticmethod
    def _probe_fault(now: int, fault: TargetFault) -> Permit | None:
        if now < fault.until:
            return None
        fault.until = now + MAX_FAULT_PAUSE_MS  # no second probe before this one is heard of
        return Permit.Probe

    def wants_probe(self, now: int) -> bool:
        """True if it is shut in a way that only a delivery can open."""
        reason, _ = self.why(now)
        return reason == Reason.CircuitOpen or (self._fault is not None and reason == self._fault.reason)

    def record(self, outcome: DeliveryOutcome, leave: Permit, now: int, message: Hashable, *, is_first: bool) -> bool:
        """Take note of an outcome; True if it counts as an attempt. `is_first`: the message was never tried before."""
        if outcome.fault:
            self._blame(outcome, leave, now)
            return False
        self._fault = None
        was_closed, sign = self.breaker.may_deliver(), outcome.sign
        if leave is Permit.Probe:
            self.breaker.record_probe(sign, now, is_fresh=is_first)
        else:
            self.breaker.record(sign, message, now, is_first=is_first)
        return sign is ServiceHealth.Up or was_closed or (leave is Permit.Probe and outcome.may_be_poison)

    def _blame(self, outcome: DeliveryOutcome, leave: Permit, now: int) -> None:
        if self._fault is not None and leave is Permit.Usual:
            return  # it was on its way when the first one failed
        wait = min(self._fault.wait * 2, MAX_FAULT_PAUSE_MS) if self._fault else INITIAL_FAULT_PAUSE_MS
        message = outcome.failure.message if outcome.failure else ""
        self._fault = TargetFault(outcome.fault, message, wait, now + wait)

    def refused(self, claim: object, reason: str, message: str) -> None:
        """A box does not take what a claim became."""
        self._refusals[id(claim)] = (reason, message)

    def taken(self, claim: object) -> None:
        """It did after all, or the claim is no longer ours."""
        self._refusals.pop(id(claim), None)
