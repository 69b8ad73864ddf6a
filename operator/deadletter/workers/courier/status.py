"""What a courier says of itself: to the ledger on change and every 30 s, to Prometheus, to the kubelet."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from deadletter import logs
from deadletter.brokers.contract import Subscription
from deadletter.brokers.errors import BrokerError
from deadletter.core.heartbeats import WorkerStatus
from deadletter.workers import metrics
from deadletter.workers.courier.courier import Courier

POLL_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_MS = 30_000
STUCK_AFTER_S = 300.0


class StatusReporter:
    """Watches a courier and speaks for it."""

    def __init__(
        self,
        courier: Courier,
        desk: Subscription,
        pod: str,
        where: tuple[str, str],
        clock: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._courier, self._desk, self._pod, self._where, self._clock = courier, desk, pod, where, clock
        self._said = WorkerStatus(pod, at=-HEARTBEAT_INTERVAL_MS)
        self._reason = ""
        self._patience = max(STUCK_AFTER_S, 2 * timeout_s)
        self._moves = -1
        self._lag = 0
        self._lost = 0
        self._moved_at = 0.0
        self._log = logs.get(__name__)

    def word(self) -> WorkerStatus:
        """How it stands now."""
        now = self._clock()
        reason, message = self._why(now)
        return WorkerStatus(self._pod, self._courier.gate.breaker.state, reason, message, self._desk.parked, now)

    def _why(self, now: int) -> tuple[str, str]:
        """Reason and sentence of the pause; without one, of a partition that is shut while others are worked on."""
        reason, message = self._courier.gate.why(now)
        shut = self._desk.blocked_by
        if reason or shut is None:
            return reason, message
        return type(shut).__name__, str(shut)[:1024]

    async def speak(self) -> None:
        """Until cancelled."""
        while True:
            self._measure()
            await self._say(self.word())
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _say(self, word: WorkerStatus) -> None:
        same = replace(word, at=0, parked=0) == replace(self._said, at=0, parked=0)
        if same and 0 <= word.at - self._said.at < HEARTBEAT_INTERVAL_MS:  # a clock that was put back is no reason to be silent
            return
        if word.paused != self._said.paused:
            self._log.info("paused" if word.paused else "working", reason=word.paused, message=word.message)
        try:
            await self._desk.report_status(word)
        except BrokerError as error:
            self._log.warning("the ledger did not take the courier's word", reason=type(error).__name__)
        else:
            self._said = word

    def _measure(self) -> None:
        gate, where = self._courier.gate, self._where
        reason, _ = self._why(self._clock())
        metrics.COURIER_LAG.labels(*where).set(self._desk.lag)
        metrics.RETRIES_PARKED.labels(*where).set(self._desk.parked)
        metrics.PARKED_LETTERS_LOST.labels(*where).inc(self._desk.lost - self._lost)
        self._lost = self._desk.lost
        metrics.COURIER_IN_FLIGHT.labels(*where).set(self._courier.in_flight)
        metrics.CIRCUIT_OPEN.labels(*where).set(gate.breaker.state != "Closed")
        if self._reason and self._reason != reason:
            metrics.COURIER_PAUSED.labels(*where, self._reason).set(0)
        if reason:
            metrics.COURIER_PAUSED.labels(*where, reason).set(1)
        self._reason = reason

    def stuck(self, now: float) -> str:
        """The watchdog: lag grows, nothing moves for minutes and nothing pauses it. `now` in seconds."""
        moves = self._courier.load.moves
        if moves != self._moves or self._why(self._clock())[0] or self._desk.lag <= self._lag:
            self._moves, self._lag, self._moved_at = moves, self._desk.lag, now
            return ""
        return "nothing moves although the lag grows" if now - self._moved_at > self._patience else ""
