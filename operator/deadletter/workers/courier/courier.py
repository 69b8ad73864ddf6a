"""The walk of a courier: claim, line up by key, deliver, meet the fate. One desk, one service."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from deadletter import logs
from deadletter.api.assignments import CourierAssignment
from deadletter.brokers.contract import Subscription
from deadletter.brokers.errors import BrokerError, Fenced, GroupOffsetsLost
from deadletter.brokers.types import Claim
from deadletter.clock import now_ms
from deadletter.core.circuit_breaker import PROBES
from deadletter.workers import metrics, process
from deadletter.workers.courier import letters
from deadletter.workers.courier.dispositions import Dispositions
from deadletter.workers.courier.gate import Gate, Permit
from deadletter.workers.courier.in_flight import InFlightClaims
from deadletter.workers.courier.key_ordering import RETRY_TURN_INTERVAL
from deadletter.workers.delivery.http.delivery import HttpMessageDelivery

MAX_CLAIM_FAILURE_S = 60.0
POLL_INTERVAL_S = 0.2
SHUTDOWN_GRACE_S = 25.0


class Courier:
    """Runs until told to stop; killed at any moment, what it did not settle is claimed again."""

    def __init__(
        self,
        assignment: CourierAssignment,
        desk: Subscription,
        deliverer: HttpMessageDelivery,
        paused: Callable[[], str] = str,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._desk, self._deliverer, self._clock = desk, deliverer, clock
        self._slots = assignment.delivery.concurrency
        self._in_flight = 0
        self._opened = 0  # how often the circuit had opened when messages were last claimed to probe with
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._log = logs.get(__name__)
        self.load = InFlightClaims(self._slots)
        self.gate = Gate(assignment.policy.policy(), paused)
        self._fates = Dispositions(assignment, desk, self.gate, self.load, clock, self._start, self._wake)
        where = (assignment.namespace, assignment.queue)
        self._duration = metrics.DELIVERY_DURATION.labels(*where)
        self._outcomes = {word: metrics.DELIVERY_ATTEMPTS.labels(*where, word) for word in ("delivered", "failed", "fault")}

    @property
    def in_flight(self) -> int:
        """Deliveries under way."""
        return self._in_flight

    async def run(self, stop: asyncio.Event, grace: float = SHUTDOWN_GRACE_S) -> None:
        """Work until told to stop, then finish what is on its way within `grace`; the rest is left unsettled.

        What nobody expected is raised when the rest is finished: a claim without a task would stay ours for ever.
        """
        stopping = asyncio.ensure_future(stop.wait())
        claiming = asyncio.ensure_future(self._claim_on())
        try:
            ends: set[asyncio.Future[Any]] = {stopping, claiming, self._broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                claiming.result()
            await self._finish(claiming, grace)
            if self._broken.done():
                self._broken.result()
        finally:
            await self._leave(stopping, claiming)

    async def _finish(self, claiming: "asyncio.Future[None]", grace: float) -> None:
        self._stopping = True
        self._fates.stopping.set()
        self._fates.forget()
        self._changed.set()
        end = asyncio.get_running_loop().time() + grace
        while under_way := {task for task in (claiming, *self._tasks) if not task.done()}:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait(under_way, timeout=left)

    async def _leave(self, *others: "asyncio.Future[Any]") -> None:
        self._stopping = True
        self._fates.forget()
        if self._timer is not None:
            self._timer.cancel()
        await process.cancel_and_wait(*others, *self._tasks)

    async def _claim_on(self) -> None:
        since: float | None = None
        while not self._stopping:
            try:
                await self._claim_once()
                since = None
            except BrokerError as error:
                now = asyncio.get_running_loop().time()
                since = since if since is not None else now
                # A group that forms anew looks like a fence for a moment. One that lost its offsets waits for a person,
                # and the operator reports it only while no courier is ready.
                is_over = isinstance(error, GroupOffsetsLost) or now - since > MAX_CLAIM_FAILURE_S
                if is_over or not (error.is_transient or isinstance(error, Fenced)):
                    raise
                reason, message = type(error).__name__, str(error)[:1024]
                self._log.warning("claiming failed; it is tried again", reason=reason, message=message)
                await asyncio.sleep(1.0)

    async def _claim_once(self) -> None:
        room, due = self._room()
        if room <= 0:
            await self._glance()
            return
        for claim in await self._desk.claim(room, self.load.free_bytes, due):
            self.load.take(claim)
            if claim.unreadable:
                self._fates.bury_unread(claim)
            else:
                self._fates.lanes.add(letters.restore_attempts(claim))
        self._pump()

    def _room(self) -> tuple[int, int]:
        """How many claims to take now, and how many of them may be parked letters.

        While only a probe can open the gate: fresh messages for it, some more each time the circuit opens (those that
        are held may all be bad ones of one partition), and letters if there is nothing else to probe with.
        """
        lanes, now = self._fates.lanes, self._clock()
        if not self.gate.why(now)[0]:
            room = self.load.room(lanes.behind)
            return room, -(-room // RETRY_TURN_INTERVAL)
        is_enough = lanes.fresh >= PROBES and self._opened == self.gate.breaker.opened
        if is_enough or not self.gate.wants_probe(now):
            return 0, 0
        self._opened = self.gate.breaker.opened
        return min(self.load.spare, PROBES), max(PROBES - len(lanes) - self._in_flight, 0)

    async def _glance(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(POLL_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._pump()

    def _pump(self) -> None:
        lanes, leave = self._fates.lanes, None
        while len(lanes) and self._in_flight < self._slots and not self._stopping:
            leave = leave or self.gate.ask(self._clock(), lanes)
            if leave is None:
                self._pump_later()
                return
            claim, is_first = lanes.take_probe() if leave is Permit.Probe else lanes.take()
            if self._desk.holds(claim):
                self._in_flight += 1
                self._start(self._attend(claim, leave, is_first))
                leave = None
            else:
                self._fates.drop(claim)

    def _pump_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._pump_now)

    def _pump_now(self) -> None:
        self._timer = None
        self._pump()

    async def _attend(self, claim: Claim, leave: Permit, is_first: bool) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            outcome = await self._deliverer.attempt(claim)
        finally:
            self._in_flight -= 1
        self._duration.observe(loop.time() - started)
        self._outcomes[outcome.word].inc()
        self.load.moves += 1
        is_taken = self._fates.meet(claim, outcome, leave, is_first=is_first)
        self._wake()
        if is_taken:
            await self._fates.settle_delivered(claim)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # whoever runs us may be gone by now
