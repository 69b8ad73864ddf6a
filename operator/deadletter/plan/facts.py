"""What was observed before judging. Handlers gather it; nothing here reads anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core.box_stats import BoxStats
from deadletter.core.replay_progress import PartitionProgress


@dataclass(frozen=True, slots=True)
class SecretFact:
    """A Secret by its keys, or why it could not be read."""

    keys: frozenset[str] = frozenset()
    exists: bool = True
    readable: bool = True
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class BoxOwner:
    """Another queue that names the same dead box; foreign: of another namespace, so it is not named."""

    name: str
    in_other_namespace: bool


@dataclass(frozen=True, slots=True)
class ParkedLetterLoss:
    """Letters deleted from the retry box before they were delivered: how many in all, and when the last were missed."""

    letters: int
    at: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a queue is judged by."""

    connection: BrokerConnection | None = None
    policy: RetryPolicy | None = None
    queues: Mapping[str, DeadLetterQueue] = field(default_factory=dict)  # of the same namespace
    box_owner: BoxOwner | None = None  # an older queue with the same dead box
    secrets: Mapping[str, SecretFact] = field(default_factory=dict)
    services: Mapping[str, bool] = field(default_factory=dict)  # name -> does it exist
    stats: BoxStats | None = None
    retention_ms: int | None = None
    loss: ParkedLetterLoss | None = None
    ledger_problem: str | None = None  # what the broker refuses to give the ledger; None: not asked yet
    owned_boxes: tuple[OwnedBox, ...] | None = None  # records of this pass; None: those of the status hold
    deployment: Mapping[str, Any] | None = None
    pod_problem: str = ""  # why no pod of ours is available, when one says so
    now: int = 0


@dataclass(frozen=True, slots=True)
class PodExit:
    """How a pod of ours ended: when, with which code, what the node says of it, and its own last words."""

    at: int
    code: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """What a Replay is judged by."""

    queue: DeadLetterQueue | None = None
    connection: BrokerConnection | None = None
    preview: Replay | None = None
    target: DeadLetterQueue | None = None
    target_connection: BrokerConnection | None = None
    route_boxes: tuple[str, ...] = ()  # dead boxes that routes of the queue that gets the letters lead to
    services: Mapping[str, bool] = field(default_factory=dict)
    blocking_replay: str | None = None  # the Apply of the same queue that runs or waits before this one
    progress: tuple[PartitionProgress, ...] = ()
    job: Mapping[str, Any] | None = None
    assignment: str = ""  # the assignment it began with
    pod_exits: tuple[PodExit, ...] = ()  # of its pods, the newest last
    pod_problem: str = ""  # why its pod does not start
    now: int = 0

    @property
    def failed_pods(self) -> int:
        """Pods that ended since the tallies last moved."""
        moved = max((tally.updated_at for tally in self.progress), default=0)
        return sum(1 for one in self.pod_exits if one.code and one.at >= moved)
