"""Carry out the outcome of a delivery.

- delivered: settle Delivered
- failed during a pause, or by a fault of the target: deliver again later; not counted as an attempt
- the last attempt did not reach the service: deliver once more when the service has answered another message
- failed: what the policy decides
    - Retry, due soon: wait in memory, then deliver again
    - Retry, due later, or of a parked letter: settle Parked
    - Bury: settle Buried, into the box of the first route that matches or the dead box
    - Discard: settle Discarded, with a warning

`onExhausted: Discard` does not hold for an error of the courier itself: such a message is buried.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from deadletter import logs
from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.contract import Subscription
from deadletter.brokers.types import Buried, Claim, Delivered, Discarded, Parked
from deadletter.core.cel import Predicate
from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.core.letters import Category, Failure, Letter
from deadletter.core.policy import Bury, Discard, Retry, decide
from deadletter.core.reasons import Reason
from deadletter.wall_clock import monotonic_ms
from deadletter.workers import metrics
from deadletter.workers.backoff import wait_for_event
from deadletter.workers.courier import letters
from deadletter.workers.courier.broker_access import BrokerAccess
from deadletter.workers.courier.claim_capacity import InFlightClaims
from deadletter.workers.courier.disposition_log import BURIED, DISCARDED, PARKED, DispositionLog
from deadletter.workers.courier.gate import Gate, Permit
from deadletter.workers.courier.inline_retries import InlineRetries, PendingRetry
from deadletter.workers.courier.key_ordering import KeyOrderedQueue
from deadletter.workers.courier.settle import PlannedSettlement, Settler
from deadletter.workers.courier.unreached_messages import UnreachedMessages
from deadletter.workers.delivery.outcome import DeliveryOutcome

DELIVERED = PlannedSettlement(Delivered())
BUDGET_POLL_INTERVAL_S = 0.5


class Dispositions:
    """Carries out outcomes. `start` runs a task; `on_available` is called when a claim may have become deliverable."""

    def __init__(
        self,
        assignment: CourierAssignment,
        subscription: Subscription,
        gate: Gate,
        access: BrokerAccess,
        in_flight: InFlightClaims,
        clock: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], None],
        on_available: Callable[[], None],
    ) -> None:
        self._assignment, self._subscription, self._gate = assignment, subscription, gate
        self._in_flight, self._clock, self._start, self._on_available = in_flight, clock, start, on_available
        self._policy = assignment.policy.to_policy()
        self._own_error_policy = replace(self._policy, on_exhausted="Bury")
        self._hold_s = self._policy.breaker.open_for / 1000
        self._inline_limit_ms = assignment.delivery.inline_limit_ms
        self._labels = (assignment.namespace, assignment.queue)
        self._routes = tuple((Predicate.cached(route.match), route.box) for route in assignment.routes)
        self.stopping = asyncio.Event()  # set: what is refused or over the budget stays unsettled, for the next pod
        self._settler = Settler(subscription, gate, access, self.stopping, self._labels)
        self._log = logs.get(__name__)
        self._disposition_log = DispositionLog()
        self.queue = KeyOrderedQueue(ordered=assignment.delivery.ordering == "Key")
        self.inline_retries = InlineRetries(assignment.delivery.concurrency // 2, self._deliver_again)
        self._unreached = UnreachedMessages(self._deliver_again)

    def log_summary(self) -> None:
        """Log what the current second has left to summarise."""
        self._disposition_log.write_summary()

    def abandon_waiting(self) -> None:
        """Cancel all waits in memory; these claims stay unsettled, for the next pod."""
        self.inline_retries.cancel_all()
        self._unreached.clear()

    def _deliver_again(self, claim: Claim) -> None:
        self.queue.requeue(claim)
        self._on_available()

    def drop_lost_claim(self, claim: Claim) -> None:
        """Forget a claim that another pod owns now."""
        self._unreached.forget(claim)
        self.queue.release(claim)
        self._in_flight.remove(claim)

    def apply_outcome(self, claim: Claim, outcome: DeliveryOutcome, permit: Permit, *, is_first: bool) -> bool:
        """Carry out the outcome of a delivery. If True, it was delivered and `settle_delivered` must follow."""
        name = letters.message_id(claim) if outcome.service_health is ServiceHealth.Down else None
        is_attempt = self._gate.record(outcome, permit, monotonic_ms(), name, is_first=is_first)
        if len(self._unreached) and outcome.is_answered:
            self._unreached.release_all()
        if outcome.failure is None:
            self._release(claim)
            return True
        if is_attempt:
            self._apply_failure(claim, outcome.failure, outcome, self._clock())
        else:
            self.queue.requeue(claim)
        return False

    async def settle_delivered(self, claim: Claim) -> None:
        """Settle a delivered claim; return when that is durable or the claim is lost."""
        await self._settle(claim, DELIVERED)

    def _release(self, claim: Claim) -> None:
        # Before the settlement is durable: a settlement that is batched with others must not delay deliveries.
        self._in_flight.mark_decided()
        self._unreached.forget(claim)
        self.queue.release(claim)

    async def _settle(self, claim: Claim, planned: PlannedSettlement) -> bool:
        try:
            return await self._settler.settle(claim, planned)
        finally:
            self._in_flight.mark_settled(claim)

    def bury_undecodable(self, claim: Claim) -> None:
        """Bury the raw bytes of a batch that cannot be decoded, without delivering it."""
        failure = Failure("UndecodableBatch", claim.undecodable_reason, Category.Validation)
        letter = letters.failed_letter(claim, failure, self._assignment.group, self._clock())
        self._log.warning("source batch cannot be decoded, burying its bytes", message=claim.undecodable_reason)
        self._start(self._bury(claim, letter, Bury(Reason.Undecodable)))

    def _apply_failure(self, claim: Claim, failure: Failure, outcome: DeliveryOutcome, now: int) -> None:
        letter = letters.failed_letter(claim, failure, self._assignment.group, now)
        chance = random.random()  # noqa: S311 - jitter needs no secrecy
        policy = self._own_error_policy if outcome.is_courier_error else self._policy
        verdict = decide(letter, policy, now, chance, outcome.retry_after, outcome.requested_action)
        if isinstance(verdict, Retry):
            self._retry(claim, letter, verdict.at, now)
        elif self._may_be_outage(letter, outcome, verdict) and self._unreached.hold(claim, self._hold_s):
            return
        elif isinstance(verdict, Bury):
            self._start(self._bury(claim, letter, verdict))
        else:
            self._start(self._discard(claim, letter, verdict))

    def _may_be_outage(self, letter: Letter, outcome: DeliveryOutcome, verdict: Bury | Discard) -> bool:
        """True if the message used up its attempts and the last one did not reach the service.

        A policy that allows one attempt, or sets a maximum age, is applied as it is.
        """
        is_exhausted = verdict.reason == Reason.AttemptsExhausted and letter.envelope.attempts > 1
        return is_exhausted and outcome.service_health is ServiceHealth.Down and self._policy.breaker.enabled

    def _retry(self, claim: Claim, letter: Letter, due_at: int, now: int) -> None:
        first = letter.envelope.first_failed_at or now
        pending = PendingRetry(claim, letter, due_at)
        # Park a parked letter again: inline attempts are persisted only for source messages.
        if claim.parked or due_at - first > self._inline_limit_ms:
            self._start(self._park(pending))
            return
        claim.attempts, claim.first_failed_at = letter.envelope.attempts, first
        self._subscription.record_attempt(claim, claim.attempts, first)
        metrics.RETRIES.labels(*self._labels, "inline").inc()
        to_park = self.inline_retries.add(pending, now, self.queue.retries)
        if to_park is not None:
            self._start(self._park(to_park))

    async def _park(self, pending: PendingRetry) -> None:
        metrics.RETRIES.labels(*self._labels, "parked").inc()
        letter, due_at = pending.letter, pending.due_at
        planned = PlannedSettlement(
            Parked(letters.parked_message(letter, due_at), due_at),
            lambda: Parked(letters.parked_message(letters.without_failure_details(letter), due_at), due_at),
        )
        if await self._release_and_settle(pending.claim, planned):
            self._disposition_log.record(PARKED, letter, Reason.RetryLater)

    async def _bury(self, claim: Claim, letter: Letter, verdict: Bury) -> None:
        if not await self._wait_for_budget():
            return
        box = self._dead_box_of(letter)
        compat = self._assignment.compat_headers
        planned = PlannedSettlement(
            Buried(box, letters.buried_message(letter, verdict.reason, compat)),
            lambda: Buried(box, letters.buried_message(letters.without_failure_details(letter), verdict.reason)),
        )
        self._gate.budget.spend(monotonic_ms())
        if await self._release_and_settle(claim, planned):
            metrics.LETTERS_BURIED.labels(*self._labels, verdict.reason, letter.envelope.failure.category).inc()
            self._disposition_log.record(BURIED, letter, verdict.reason)

    async def _wait_for_budget(self) -> bool:
        while self._gate.budget.is_spent(monotonic_ms()):
            if await wait_for_event(self.stopping, BUDGET_POLL_INTERVAL_S):
                return False
        return True

    def _dead_box_of(self, letter: Letter) -> str:
        now = self._clock()
        own = self._assignment.boxes.dead
        return next((box for predicate, box in self._routes if predicate.matches(letter, now)), own)

    async def _discard(self, claim: Claim, letter: Letter, verdict: Discard) -> None:
        if await self._release_and_settle(claim, PlannedSettlement(Discarded())):
            metrics.LETTERS_DISCARDED.labels(*self._labels, verdict.reason).inc()
            self._disposition_log.record(DISCARDED, letter, verdict.reason)

    async def _release_and_settle(self, claim: Claim, planned: PlannedSettlement) -> bool:
        self._release(claim)
        self._on_available()
        return await self._settle(claim, planned)
