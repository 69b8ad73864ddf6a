"""The courier's loop: claim messages, order them by key, deliver them, carry out the outcomes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from deadletter import logs
from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.contract import Subscription
from deadletter.brokers.errors import BrokerError, Fenced, GroupOffsetsLost
from deadletter.brokers.types import Claim
from deadletter.core.circuit_breaker import MAX_PROBES
from deadletter.wall_clock import monotonic_ms, now_ms
from deadletter.workers import metrics, process
from deadletter.workers.backoff import wait_for_event
from deadletter.workers.courier import letters
from deadletter.workers.courier.broker_access import BrokerAccess
from deadletter.workers.courier.claim_capacity import InFlightClaims
from deadletter.workers.courier.dispositions import Dispositions
from deadletter.workers.courier.gate import Gate, Permit
from deadletter.workers.courier.key_ordering import RETRY_TURN_INTERVAL
from deadletter.workers.delivery.base import MessageDelivery
from deadletter.workers.delivery.outcome import DeliveryOutcome, outcome_of_courier_error
from deadletter.workers.environment import MAX_MESSAGE_CHARACTERS

MAX_CLAIM_FAILURE_S = 60.0
CLAIM_RETRY_DELAY_S = 1.0
POLL_INTERVAL_S = 0.2
SHUTDOWN_GRACE_S = 25.0
OUTCOME_LABELS = ("delivered", "failed", "fault")


class Courier:
    """Delivers the messages of one subscription to one service until it is stopped.

    It may be killed at any moment: what it did not settle is claimed again.
    """

    def __init__(
        self,
        assignment: CourierAssignment,
        subscription: Subscription,
        delivery: MessageDelivery,
        operator_pause: Callable[[], str] = str,
        clock: Callable[[], int] = now_ms,
        access: BrokerAccess | None = None,
    ) -> None:
        self._subscription, self._delivery = subscription, delivery
        self._access = access or BrokerAccess(0)
        self._slots = assignment.delivery.concurrency
        self._deliveries = 0
        self._claimed_at_opening = 0  # `breaker.times_opened` when messages were last claimed for probes
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._task_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._log = logs.get(__name__)
        self.in_flight = InFlightClaims(self._slots)
        self.gate = Gate(assignment.policy.to_policy(), operator_pause)
        self._dispositions = Dispositions(
            assignment,
            subscription,
            self.gate,
            self._access,
            self.in_flight,
            clock,
            self._start_task,
            self._on_available,
        )
        labels = (assignment.namespace, assignment.queue)
        self._duration = metrics.DELIVERY_DURATION.labels(*labels)
        self._attempts = {outcome: metrics.DELIVERY_ATTEMPTS.labels(*labels, outcome) for outcome in OUTCOME_LABELS}

    @property
    def deliveries_in_flight(self) -> int:
        """How many deliveries have no outcome yet."""
        return self._deliveries

    async def run(self, stop: asyncio.Event, grace: float = SHUTDOWN_GRACE_S) -> None:
        """Work until `stop`, then finish the current deliveries within `grace` seconds; the rest stays unsettled.

        An unexpected error of a task is raised after the others have finished: its claim would never be settled here.
        """
        stopping = asyncio.ensure_future(stop.wait())
        claiming = asyncio.ensure_future(self._claim_until_stopped())
        try:
            ends: set[asyncio.Future[Any]] = {stopping, claiming, self._task_error}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                claiming.result()
            await self._finish(claiming, grace)
            if self._task_error.done():
                self._task_error.result()
        finally:
            await self._cancel_all(stopping, claiming)

    async def _finish(self, claiming: "asyncio.Future[None]", grace: float) -> None:
        self._is_stopping = True
        self._dispositions.stopping.set()
        self._dispositions.abandon_waiting()
        self._changed.set()
        deadline = asyncio.get_running_loop().time() + grace
        while running := {task for task in (claiming, *self._tasks) if not task.done()}:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait(running, timeout=left)

    async def _cancel_all(self, *others: "asyncio.Future[Any]") -> None:
        self._is_stopping = True
        self._dispositions.abandon_waiting()
        if self._timer is not None:
            self._timer.cancel()
        await process.cancel_and_wait(*others, *self._tasks)
        self._dispositions.log_summary()

    async def _claim_until_stopped(self) -> None:
        failing_since: float | None = None
        while not self._is_stopping:
            try:
                await self._claim_once()
                failing_since = None
            except BrokerError as error:
                self._access.add_failure(error)
                now = asyncio.get_running_loop().time()
                failing_since = failing_since if failing_since is not None else now
                # A group that is formed again looks like a fence for a moment. A group that lost its offsets waits for
                # a person, and the operator reports it only while no courier is ready.
                must_end = isinstance(error, GroupOffsetsLost) or now - failing_since > MAX_CLAIM_FAILURE_S
                if must_end or not (error.is_transient or isinstance(error, Fenced)):
                    raise
                reason, message = type(error).__name__, str(error)[:MAX_MESSAGE_CHARACTERS]
                self._log.warning("claiming failed, retrying", reason=reason, message=message)
                await asyncio.sleep(CLAIM_RETRY_DELAY_S)

    async def _claim_once(self) -> None:
        limit, due_limit = self._claim_limits()
        if limit <= 0:
            self._changed.clear()
            await wait_for_event(self._changed, POLL_INTERVAL_S)
            return
        claims = await self._subscription.claim(limit, self.in_flight.free_bytes, due_limit)
        self._access.add_success()
        for claim in claims:
            self.in_flight.add(claim)
            if claim.undecodable_reason:
                self._dispositions.bury_undecodable(claim)
            else:
                self._dispositions.queue.add(letters.restore_attempts(claim))
        self._start_deliveries()

    def _claim_limits(self) -> tuple[int, int]:
        """Return how many claims to take now, and how many of them may be parked letters.

        While only a probe can open the gate, take fresh messages for it, some more each time the circuit opens (those
        that are held may all be bad ones of one partition), and parked letters if there is nothing else to probe with.
        """
        queue, now = self._dispositions.queue, monotonic_ms()
        if not self.gate.pause_reason(now)[0]:
            limit = self.in_flight.capacity(queue.blocked)
            return limit, -(-limit // RETRY_TURN_INTERVAL)
        has_enough = queue.fresh >= MAX_PROBES and self._claimed_at_opening == self.gate.breaker.times_opened
        if has_enough or not self.gate.needs_probe(now):
            return 0, 0
        self._claimed_at_opening = self.gate.breaker.times_opened
        return min(self.in_flight.spare_capacity, MAX_PROBES), max(MAX_PROBES - len(queue) - self._deliveries, 0)

    def _on_available(self) -> None:
        self._changed.set()
        self._start_deliveries()

    def _start_deliveries(self) -> None:
        queue, permit = self._dispositions.queue, None
        while len(queue) and self._deliveries < self._slots and not self._is_stopping:
            permit = permit or self.gate.acquire(monotonic_ms(), queue)
            if permit is None:
                self._start_deliveries_later()
                return
            claim, is_first = queue.take_probe() if permit is Permit.Probe else queue.take_next()
            if self._subscription.holds(claim):
                self._deliveries += 1
                self._start_task(self._deliver(claim, permit, is_first))
                permit = None
            else:
                self._dispositions.drop_lost_claim(claim)

    def _start_deliveries_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._start_deliveries()

    async def _deliver(self, claim: Claim, permit: Permit, is_first: bool) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            outcome = await self._attempt(claim)
        finally:
            self._deliveries -= 1
        self._duration.observe(loop.time() - started)
        self._attempts[outcome.metric_label].inc()
        self.in_flight.progress_count += 1
        is_delivered = self._dispositions.apply_outcome(claim, outcome, permit, is_first=is_first)
        self._on_available()
        if is_delivered:
            await self._dispositions.settle_delivered(claim)

    async def _attempt(self, claim: Claim) -> DeliveryOutcome:
        try:
            return await self._delivery.attempt(claim.message, letters.delivery_metadata(claim))
        except Exception as error:  # noqa: BLE001 - one message must not stop the courier: the policy retries, then buries it
            origin = logs.origin_of(error)
            self._log.error("delivery failed with an unexpected error", error=origin)
            return outcome_of_courier_error(origin)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._task_error.done():
            self._task_error.set_exception(error)
            self._task_error.exception()  # mark it as retrieved: `run` may have ended already
