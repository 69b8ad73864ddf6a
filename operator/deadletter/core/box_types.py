"""Value types of a box: what it should be (BoxSpec) and what a sweep counted in it (BoxStats, FailureGroup)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.replay_progress import PartitionProgress


@dataclass(slots=True, frozen=True)
class BoxSpec:
    """A topic or stream that should exist.

    `adopt`: it must exist already and is never created, configured or deleted. `must_be_new`: it must not exist yet;
    if others have created it, it is not configured. `min_message_bytes`: its limit for messages is raised to this, and
    never lowered.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    retention_ms: int | None = None  # None: leave it as it is; -1: keep letters without a time limit
    config: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False
    is_retry_box: bool = False  # on Redis a retry box is a sorted set, on Kafka a topic
    must_be_new: bool = False
    min_message_bytes: int | None = None


@dataclass(slots=True, frozen=True)
class FailureGroup:
    """Open letters that share one fingerprint. Times are milliseconds since the epoch."""

    fingerprint: str
    error_type: str
    category: str
    letters: int
    first_seen: int
    last_seen: int


@dataclass(slots=True, frozen=True)
class BoxStats:
    """What one sweep counted in one dead box."""

    depth: int  # open letters
    oldest: int | None  # when the oldest open letter failed, ms; None: no open letter
    groups: tuple[FailureGroup, ...] = ()
    caught_up: bool = True  # False: the monitor has not read the whole box yet, so the numbers must not be exported
    upper_bound: bool = False  # True for a compacted topic: compaction may have removed counted letters
    parked: int = 0
    progress: Mapping[str, tuple[PartitionProgress, ...]] = field(
        default_factory=dict
    )  # Replay uid -> one per partition
    couriers: tuple[WorkerStatus, ...] = ()
    lost: int = 0  # parked letters that disappeared from the retry box since the last sweep
    skipped: int = 0  # ledger records read since the last sweep that only a later release understands
