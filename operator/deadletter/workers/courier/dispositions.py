"""What becomes of a claim after a delivery.

- done: settle Delivered
- failed while the gate was shut, or by the queue's own fault: deliver again when it opens, not counted
- the last attempt did not reach the service: deliver once more when it has answered another message
- failed: the policy's verdict
    - Retry, soon: wait here, then deliver again
    - Retry, late, or of a parked letter: settle Parked
    - Bury: settle Buried, in the box of the first route that matches or in the dead box
    - Discard: settle Discarded, with a warning
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from deadletter import logs
from deadletter.api.assignments import CourierAssignment
from deadletter.brokers.contract import Subscription
from deadletter.brokers.types import Buried, Claim, Delivered, Discarded, Parked
from deadletter.core.cel import Predicate
from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.core.letters import Category, Failure, Letter
from deadletter.core.policy import Bury, Discard, Retry, decide
from deadletter.core.reasons import Reason
from deadletter.workers import metrics
from deadletter.workers.courier import letters
from deadletter.workers.courier.gate import Gate, Permit
from deadletter.workers.courier.in_flight import InFlightClaims
from deadletter.workers.courier.inline_retries import InlineRetries, PendingRetry
from deadletter.workers.courier.key_ordering import KeyOrderedQueue
from deadletter.workers.courier.settle import PlannedSettlement, Settler, has_come
from deadletter.workers.courier.unreached_messages import UnreachedMessages
from deadletter.workers.delivery.outcome import DeliveryOutcome

DELIVERED = PlannedSettlement(Delivered())
BUDGET_POLL_INTERVAL_S = 0.5


class Dispositions:
    """Carries out verdicts; `start` runs what takes time, `wake` is called when a lane may have become free."""

    def __init__(
        self,
        assignment: CourierAssignment,
        desk: Subscription,
        gate: Gate,
        load: InFlightClaims,
        clock: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], None],
        wake: Callable[[], None],
    ) -> None:
        self._assignment, self._desk, self._gate, self._load = assignment, desk, gate, load
        self._clock, self._start, self._wake = clock, start, wake
        self._policy = assignment.policy.policy()
        self._open_for = self._policy.breaker.open_for / 1000
        self._inline = assignment.delivery.inline_limit_ms
        self._where = (assignment.namespace, assignment.queue)
        self._routes = tuple((Predicate.cached(route.match), route.box) for route in assignment.routes)
        self.stopping = asyncio.Event()  # what is refused or over the budget is then left unsettled, for the next pod
        self._settler = Settler(desk, gate, self.stopping, *self._where)
        self._log = logs.get(__name__)
        self.lanes = KeyOrderedQueue(ordered=assignment.delivery.ordering == "Key")
        self.waits = InlineRetries(assignment.delivery.concurrency // 2, self._again)
        self._doubts = UnreachedMessages(self._again)

    def forget(self) -> None:
        """What waits here is left unsettled, for the next pod."""
        self.waits.clear()
        self._doubts.clear()

    def _again(self, claim: Claim) -> None:
        self.lanes.again(claim)
        self._wake()

    def drop(self, claim: Claim) -> None:
        """It is somebody else's now."""
        self._doubts.forget(claim)
        self.lanes.free(claim)
        self._load.lose(claim)

    def meet(self, claim: Claim, outcome: DeliveryOutcome, leave: Permit, *, is_first: bool) -> bool:
        """A delivery ended like this; True: the service took it, and `settle_delivered` is to follow."""
        now = self._clock()
        name = letters.message_id(claim) if outcome.sign is ServiceHealth.Down else None
        counts = self._gate.record(outcome, leave, now, name, is_first=is_first)
        if len(self._doubts) and outcome.is_answered:
            self._doubts.release()
        if outcome.failure is None:
            self._decide(claim)
            return True
        if counts:
            self._carry_out(claim, outcome.failure, outcome, now)
        else:
            self.lanes.again(claim)
        return False

    async def settle_delivered(self, claim: Claim) -> None:
        """Returns when it is durable, or somebody else's."""
        await self._settle(claim, DELIVERED)

    def _decide(self, claim: Claim) -> None:
        """Its slot and its key are free: a settlement that waits for others keeps nobody from being delivered."""
        self._load.decide()
        self._doubts.forget(claim)
        self.lanes.free(claim)

    async def _settle(self, claim: Claim, settling: PlannedSettlement) -> bool:
        try:
            return await self._settler.settle(claim, settling)
        finally:
            self._load.settle(claim)

    def bury_unread(self, claim: Claim) -> None:
        """What nobody can decode is not delivered: it is buried as it lies there, and the others pass."""
        failure = Failure("UndecodableBatch", claim.unreadable, Category.Validation)
        letter = letters.failed_letter(claim, failure, self._assignment.group, self._clock())
        self._log.warning("a batch of the source cannot be read and is buried as it is", message=claim.unreadable)
        self._start(self._bury(claim, letter, Bury(Reason.Undecodable)))

    def _carry_out(self, claim: Claim, failure: Failure, outcome: DeliveryOutcome, now: int) -> None:
        letter = letters.failed_letter(claim, failure, self._assignment.group, now)
        chance = random.random()  # noqa: S311 - jitter needs no secrecy
        verdict = decide(letter, self._policy, now, chance, outcome.retry_after, outcome.asked)
        if isinstance(verdict, Retry):
            self._retry(claim, letter, verdict.at, now)
        elif self._is_doubtful(letter, outcome, verdict) and self._doubts.hold(claim, self._open_for):
            return
        else:
            self._end(claim, letter, verdict)

    def _is_doubtful(self, letter: Letter, outcome: DeliveryOutcome, verdict: Bury | Discard) -> bool:
        """True if it used up its attempts, and the last one did not reach the service.

        A policy that allows one attempt, or names a maximum age, gets what it asks for.
        """
        is_exhausted = verdict.reason == Reason.AttemptsExhausted and letter.envelope.attempts > 1
        return is_exhausted and outcome.sign is ServiceHealth.Down and self._policy.breaker.enabled

    def _end(self, claim: Claim, letter: Letter, verdict: Bury | Discard) -> None:
        if isinstance(verdict, Bury):
            self._start(self._bury(claim, letter, verdict))
        else:
            self._start(self._discard(claim, letter, verdict))

    def _retry(self, claim: Claim, letter: Letter, at: int, now: int) -> None:
        first = letter.envelope.first_failed_at or now
        wait = PendingRetry(claim, letter, at)
        # A parked letter is parked again: its count is then durable, which a note at the desk is not for it.
        if claim.parked or at - first > self._inline:
            self._start(self._park(wait))
            return
        claim.attempts, claim.first_failed_at = letter.envelope.attempts, first
        self._desk.record_attempt(claim, claim.attempts, first)
        metrics.RETRIES.labels(*self._where, "inline").inc()
        longest = self.waits.add(wait, now, self.lanes.retries)
        if longest is not None:
            self._start(self._park(longest))

    async def _park(self, wait: PendingRetry) -> None:
        metrics.RETRIES.labels(*self._where, "parked").inc()
        letter, at = wait.letter, wait.at
        settling = PlannedSettlement(
            Parked(letters.parked_message(letter, at), at), lambda: Parked(letters.parked_message(letters.without_failure_details(letter), at), at)
        )
        await self._lay_down(wait.claim, settling)

    async def _bury(self, claim: Claim, letter: Letter, verdict: Bury) -> None:
        if not await self._within_budget():
            return
        box = self._box_of(letter)
        compat = self._assignment.compat_headers
        settling = PlannedSettlement(
            Buried(box, letters.buried_message(letter, verdict.reason, compat)),
            lambda: Buried(box, letters.buried_message(letters.without_failure_details(letter), verdict.reason)),
        )
        self._gate.budget.spend(self._clock())
        if await self._lay_down(claim, settling):
            metrics.LETTERS_BURIED.labels(*self._where, verdict.reason, letter.envelope.failure.category).inc()

    async def _within_budget(self) -> bool:
        while self._gate.budget.is_spent(self._clock()):
            if await has_come(self.stopping, BUDGET_POLL_INTERVAL_S):
                return False
        return True

    def _box_of(self, letter: Letter) -> str:
        now = self._clock()
        own = self._assignment.boxes.dead
        return next((box for predicate, box in self._routes if predicate.matches(letter, now)), own)

    async def _discard(self, claim: Claim, letter: Letter, verdict: Discard) -> None:
        if await self._lay_down(claim, PlannedSettlement(Discarded())):
            metrics.LETTERS_DISCARDED.labels(*self._where, verdict.reason).inc()
            self._log.warning("a message was discarded", id=letter.envelope.id, reason=verdict.reason)

    async def _lay_down(self, claim: Claim, settling: PlannedSettlement) -> bool:
        self._decide(claim)
        self._wake()
        return await self._settle(claim, settling)
