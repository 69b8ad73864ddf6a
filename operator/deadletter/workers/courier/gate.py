"""Decide whether the courier may deliver now, and if not, why. Every cause of a pause meets here.

The causes in the order they are reported: the pause in `live.json` (capacity, suspend), a fault of the target (address,
DNS, TLS), a box that refuses a settlement, the open circuit, the spent error budget. A fault permits one probe at a
time, an open circuit up to five, each with other messages; a failure during a pause does not count as an attempt. One
exception: a probe that made the application itself fail (500, not 502 to 504) counts for its message. Otherwise a queue
that starts with only bad messages would never move. An application that fails on every message costs one attempt a
probe.

A message that its box refuses, while the box takes others, does not pause the courier: its claim is held alone. Many
such claims do, because the group's offset cannot pass them and their payloads stay in memory.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from deadletter.brokers.types import Claim
from deadletter.core.circuit_breaker import CircuitBreaker, ErrorBudget, ServiceHealth
from deadletter.core.policy import Policy
from deadletter.core.reasons import Reason
from deadletter.workers.courier.claim_capacity import MAX_BYTES
from deadletter.workers.courier.key_ordering import KeyOrderedQueue
from deadletter.workers.delivery.outcome import DeliveryOutcome

INITIAL_FAULT_PAUSE_MS = 1_000
MAX_FAULT_PAUSE_MS = 30_000
MAX_HELD_ALONE = 100  # in the commit metadata of one partition they take less than half of its 4 KiB
MAX_HELD_ALONE_BYTES = MAX_BYTES // 2


class Permit(Enum):
    """The permission to deliver one message."""

    Normal = "normal"
    Probe = "probe"


@dataclass(slots=True)
class TargetFault:
    """A problem of the target that every message would meet."""

    reason: str
    message: str
    pause_ms: int
    next_probe_at: int


@dataclass(slots=True, frozen=True)
class HeldClaim:
    """The id and size of a message that its box refuses, and why."""

    id: str
    size: int
    reason: str
    message: str


class Gate:
    """The state of everything that pauses a courier. It takes the monotonic time as an argument and never sleeps."""

    def __init__(self, policy: Policy, operator_pause: Callable[[], str] = str) -> None:
        self.breaker = CircuitBreaker(policy.breaker)
        self.budget = ErrorBudget(policy.budget)
        self._operator_pause = operator_pause
        self._fault: TargetFault | None = None
        self._refusals: dict[int, tuple[str, str]] = {}
        self._held_alone: dict[int, HeldClaim] = {}

    def pause_reason(self, now: int) -> tuple[str, str]:
        """Return the reason and the message of the pause; two empty strings if the gate is open."""
        operator_pause = self._operator_pause()
        if operator_pause:
            return operator_pause, "The operator pauses the queue; its conditions say why."
        if self._fault is not None:
            return self._fault.reason, self._fault.message
        if self._refusals:
            return next(iter(self._refusals.values()))
        if self._has_too_many_held:
            return self.held_reason
        if not self.breaker.may_deliver():
            return Reason.CircuitOpen, "Deliveries fail. The courier sends a few probes until the service accepts one."
        if self.budget.is_spent(now):
            return Reason.ErrorBudgetSpent, "As many letters were buried as the errorBudget of the RetryPolicy allows."
        return "", ""

    def acquire(self, now: int, queue: KeyOrderedQueue) -> Permit | None:
        """Return a permit for one delivery from the queue, or None while nothing may be delivered."""
        reason, _ = self.pause_reason(now)
        if not reason:
            return Permit.Normal
        if self._fault is not None and reason == self._fault.reason:
            return self._probe_fault(now, self._fault)
        if reason == Reason.CircuitOpen and self.breaker.may_probe(now, is_fresh=queue.has_fresh):
            return Permit.Probe
        return None

    @staticmethod
    def _probe_fault(now: int, fault: TargetFault) -> Permit | None:
        if now < fault.next_probe_at:
            return None
        fault.next_probe_at = now + MAX_FAULT_PAUSE_MS  # no second probe before the outcome of this one
        return Permit.Probe

    def needs_probe(self, now: int) -> bool:
        """True if only a delivery can end the pause."""
        reason, _ = self.pause_reason(now)
        return reason == Reason.CircuitOpen or (self._fault is not None and reason == self._fault.reason)

    def record(self, outcome: DeliveryOutcome, permit: Permit, now: int, message: Hashable, *, is_first: bool) -> bool:
        """Record an outcome; True if it counts as an attempt. `is_first`: the message was never tried before."""
        if outcome.fault:
            self._record_fault(outcome, permit, now)
            return False
        self._fault = None
        was_closed, health = self.breaker.may_deliver(), outcome.service_health
        if permit is Permit.Probe:
            self.breaker.record_probe(health, now, is_fresh=is_first)
        else:
            self.breaker.record(health, message, now, is_first=is_first)
        return health is ServiceHealth.Up or was_closed or (permit is Permit.Probe and outcome.may_be_poison)

    def _record_fault(self, outcome: DeliveryOutcome, permit: Permit, now: int) -> None:
        if self._fault is not None and permit is Permit.Normal:
            return  # this delivery began before the fault was known
        pause_ms = min(self._fault.pause_ms * 2, MAX_FAULT_PAUSE_MS) if self._fault else INITIAL_FAULT_PAUSE_MS
        message = outcome.failure.message if outcome.failure else ""
        self._fault = TargetFault(outcome.fault, message, pause_ms, now + pause_ms)

    def is_idle_on_purpose(self, now: int) -> bool:
        """True if something pauses the courier that is not a settlement that the broker refuses."""
        pause = self.pause_reason(now)
        return bool(pause[0]) and pause not in self._refusals.values()

    def add_refusal(self, claim: Claim, reason: str, message: str) -> None:
        """Pause because a box refuses the settlement of a claim."""
        self._held_alone.pop(id(claim), None)
        self._refusals[id(claim)] = (reason, message)

    def hold_alone(self, claim: Claim, held: HeldClaim) -> None:
        """Hold a claim whose message its box refuses, and go on with all others."""
        self._refusals.pop(id(claim), None)
        self._held_alone[id(claim)] = held

    def clear_refusal(self, claim: Claim) -> None:
        """Forget the refusal: the settlement is durable, or the claim was lost."""
        self._refusals.pop(id(claim), None)
        self._held_alone.pop(id(claim), None)

    @property
    def held_reason(self) -> tuple[str, str]:
        """The reason and the message of the claim that is held alone the longest; two empty strings if none is."""
        first = next(iter(self._held_alone.values()), None)
        if first is None:
            return "", ""
        others = "all others go on" if not self._has_too_many_held else "the courier waits until fewer are held"
        count = f"{len(self._held_alone)} messages are held that their box refuses, and {others}."
        return first.reason, f"{count} The first, {first.id}: {first.message}"

    @property
    def _has_too_many_held(self) -> bool:
        held = self._held_alone.values()
        return len(held) >= MAX_HELD_ALONE or sum(one.size for one in held) >= MAX_HELD_ALONE_BYTES
