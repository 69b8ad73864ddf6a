"""Tell live workers from dead ones by their heartbeats, although their clocks may be skewed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HEARTBEAT_TTL_MS = 90_000  # three heartbeat intervals of a worker


@dataclass(slots=True, frozen=True)
class WorkerStatus:
    """The heartbeat of one worker pod: its circuit, and why it is paused. Stored in the ledger."""

    pod: str
    circuit: str = "Closed"  # Closed, Open, HalfOpen
    paused: str = ""  # a Reason, or empty
    message: str = ""
    parked: int = 0
    at: int = 0  # when it was written, ms of the worker's clock
    deleted: int = 0  # messages of the source that retention deleted before they were read, since the worker started
    deleted_at: int = 0  # when it noticed the last of them, ms of the worker's clock


def stored_fields(status: WorkerStatus) -> dict[str, Any]:
    """Return the fields to store; those of 0.3.0 only if they are set, because 0.2.0 stops at unknown fields."""
    return {name: value for name, value in asdict(status).items() if value or name not in ("deleted", "deleted_at")}


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
