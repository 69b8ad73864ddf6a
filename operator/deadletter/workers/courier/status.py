"""Report the state of a courier: to the ledger on change and every 30 s, to Prometheus, to the liveness probe."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deadletter import logs
from deadletter.brokers.contract import Subscription
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import monotonic_ms
from deadletter.workers import metrics
from deadletter.workers.courier.courier import Courier
from deadletter.workers.environment import MAX_MESSAGE_CHARACTERS
from deadletter.workers.heartbeat import StatusWriter

POLL_INTERVAL_S = 1.0
STUCK_AFTER_S = 300.0


@dataclass(slots=True)
class DeletedMessages:
    """Source messages that were deleted before they were read, over all subscriptions of a process."""

    total: int = 0
    at: int = 0  # when the last ones were noticed, in milliseconds since the epoch


class StatusReporter:
    """Watches one courier, writes its heartbeat and metrics, and notices when it is stuck."""

    def __init__(
        self,
        courier: Courier,
        subscription: Subscription,
        pod: str,
        labels: tuple[str, str],
        clock: Callable[[], int],
        timeout_s: float,
        deleted: DeletedMessages | None = None,
    ) -> None:
        self._courier, self._subscription, self._pod = courier, subscription, pod
        self._labels, self._clock = labels, clock
        self._writer = StatusWriter(subscription.report_status)
        self._logged_reason = ""
        self._exported_reason = ""
        self._stuck_after_s = max(STUCK_AFTER_S, 2 * timeout_s)
        self._progress_count = -1
        self._progress_at = 0.0
        self._lag = 0
        self._lost = 0
        self._deleted = deleted or DeletedMessages()
        self._deleted_in_subscription = 0
        self._log = logs.get(__name__)

    def status(self) -> WorkerStatus:
        """Return the current status."""
        reason, message = self._reported_reason()
        circuit = self._courier.gate.breaker.state
        parked, now = self._subscription.parked_letters, self._clock()
        return WorkerStatus(self._pod, circuit, reason, message, parked, now, self._deleted.total, self._deleted.at)

    def _pause_reason(self) -> tuple[str, str]:
        """Return the reason of the pause, else why a partition is blocked while others are worked on."""
        reason, message = self._courier.gate.pause_reason(monotonic_ms())
        blocked_by = self._subscription.blocked_by
        if reason or blocked_by is None:
            return reason, message
        return type(blocked_by).__name__, str(blocked_by)[:MAX_MESSAGE_CHARACTERS]

    def _reported_reason(self) -> tuple[str, str]:
        """Return the reason of the pause, else why a message is held alone while all others are worked on."""
        reason, message = self._pause_reason()
        return (reason, message) if reason else self._courier.gate.held_reason

    @property
    def is_idle_on_purpose(self) -> bool:
        """True if the operator, the service or the error budget pauses the courier."""
        return self._courier.gate.is_idle_on_purpose(monotonic_ms())

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._count_deleted()
            self._export_metrics()
            status = self.status()
            self._log_pause(*self._pause_reason())
            await self._writer.write(status)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _count_deleted(self) -> None:
        """Count the source messages that were deleted since the last call, and note the time."""
        new = self._subscription.deleted_messages - self._deleted_in_subscription
        if new:
            self._deleted_in_subscription += new
            self._deleted.total, self._deleted.at = self._deleted.total + new, self._clock()
        metrics.SOURCE_MESSAGES_DELETED.labels(*self._labels).inc(new)
        metrics.SOURCE_MESSAGES_DELETED_TIMESTAMP.labels(*self._labels).set(self._deleted.at / 1000)

    def _log_pause(self, reason: str, message: str) -> None:
        if reason == self._logged_reason:
            return
        self._logged_reason = reason
        if reason:
            self._log.info("courier paused", reason=reason, message=message)
        else:
            self._log.info("courier resumed")

    def _export_metrics(self) -> None:
        subscription, labels = self._subscription, self._labels
        reason, _ = self._reported_reason()
        if subscription.lag is None:
            metrics.COURIER_LAG.remove(*labels)  # 0 would mean that nothing is left
        else:
            metrics.COURIER_LAG.labels(*labels).set(subscription.lag)
        metrics.RETRIES_PARKED.labels(*labels).set(subscription.parked_letters)
        metrics.PARKED_LETTERS_LOST.labels(*labels).inc(subscription.lost_letters - self._lost)
        self._lost = subscription.lost_letters
        metrics.COURIER_IN_FLIGHT.labels(*labels).set(self._courier.deliveries_in_flight)
        metrics.CIRCUIT_OPEN.labels(*labels).set(self._courier.gate.breaker.state != "Closed")
        if self._exported_reason and self._exported_reason != reason:
            metrics.COURIER_PAUSED.labels(*labels, self._exported_reason).set(0)
        if reason:
            metrics.COURIER_PAUSED.labels(*labels, reason).set(1)
        self._exported_reason = reason

    def stuck_reason(self, now: float) -> str:
        """Return why the courier counts as stuck, or nothing: lag grows for minutes without progress or a pause.

        `now` is monotonic, in seconds.
        """
        progress_count, lag = self._courier.in_flight.progress_count, self._subscription.lag
        if progress_count != self._progress_count or self._pause_reason()[0] or lag is None or lag <= self._lag:
            self._progress_count, self._lag, self._progress_at = progress_count, lag or 0, now
            return ""
        return "the courier makes no progress although its lag grows" if self._is_overdue(now) else ""

    def _is_overdue(self, now: float) -> bool:
        return now - self._progress_at > self._stuck_after_s
