"""Tell live workers from dead ones by their heartbeats, although their clocks may be skewed."""

from collections.abc import Sequence
from dataclasses import dataclass

HEARTBEAT_TTL_MS = 90_000  # three heartbeat intervals of a worker


@dataclass(slots=True, frozen=True)
class WorkerStatus:
    """The heartbeat of one worker pod: its circuit, and why it is paused. Stored in the ledger, so fields are fixed."""

    pod: str
    circuit: str = "Closed"  # Closed, Open, HalfOpen
    paused: str = ""  # a Reason, or empty
    message: str = ""
    parked: int = 0
    at: int = 0  # when it was written, ms of the worker's clock


class HeartbeatTracker:
    """Track which workers of one queue are alive by changes of their heartbeats.

    A worker's clock may be skewed, so the age of a heartbeat is measured from the time this tracker saw it change.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # pod: (time of the heartbeat, when this tracker saw it change)

    def alive(self, statuses: Sequence[WorkerStatus], now: int) -> tuple[WorkerStatus, ...]:
        """Return the statuses of the workers that sent a heartbeat within HEARTBEAT_TTL_MS."""
        self._seen = {status.pod: (status.at, self._changed_at(status, now)) for status in statuses}
        return tuple(status for status in statuses if abs(now - self._seen[status.pod][1]) <= HEARTBEAT_TTL_MS)

    def _changed_at(self, status: WorkerStatus, now: int) -> int:
        # The age of the first heartbeat seen is known only by the worker's own clock.
        previous, changed_at = self._seen.get(status.pod, (None, status.at))
        return now if previous is not None and previous != status.at else changed_at
