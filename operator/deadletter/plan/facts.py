"""Inputs of the checks and of the status: what the controller has read before a pass. Nothing here does I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core.box_types import BoxStats
from deadletter.core.replay_progress import PartitionProgress


@dataclass(frozen=True, slots=True)
class SecretFact:
    """The keys of a Secret, or why it could not be read."""

    keys: frozenset[str] = frozenset()
    exists: bool = True
    readable: bool = True
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class BoxOwner:
    """Another queue that names the same dead box. A queue of another namespace is not named in messages."""

    name: str
    in_other_namespace: bool


@dataclass(frozen=True, slots=True)
class ParkedLetterLoss:
    """Letters deleted from the retry box before they were delivered."""

    letters: int  # since the queue was created
    at: int  # when the last of them was found missing, ms


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Everything that the checks, the manifests and the status of a queue depend on."""

    connection: BrokerConnection | None = None
    policy: RetryPolicy | None = None
    queues: Mapping[str, DeadLetterQueue] = field(default_factory=dict)  # of the same namespace
    box_owner: BoxOwner | None = None  # an older queue with the same dead box
    secrets: Mapping[str, SecretFact] = field(default_factory=dict)
    services: Mapping[str, bool] = field(default_factory=dict)  # name -> True if it exists
    stats: BoxStats | None = None  # of the last sweep
    retention_ms: int | None = None
    loss: ParkedLetterLoss | None = None
    ledger_problem: str | None = None  # what the broker refuses to give the ledger; None: not checked yet
    owned_boxes: tuple[OwnedBox, ...] | None = None  # records of this pass; None: those of the status hold
    deployment: Mapping[str, Any] | None = None
    pod_problem: str = ""  # why no worker pod is available, if a pod reports it
    now: int = 0


@dataclass(frozen=True, slots=True)
class PodExit:
    """How a worker's container ended."""

    at: int
    code: int
    reason: str = ""  # the kubelet's, such as OOMKilled
    message: str = ""  # the worker's termination message


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """Everything that the checks, the manifests and the status of a Replay depend on."""

    queue: DeadLetterQueue | None = None
    connection: BrokerConnection | None = None
    preview: Replay | None = None
    target: DeadLetterQueue | None = None
    target_connection: BrokerConnection | None = None
    route_boxes: tuple[str, ...] = ()  # dead boxes of the route targets of the queue that receives the letters
    services: Mapping[str, bool] = field(default_factory=dict)  # name -> True if it exists
    blocking_replay: str | None = None  # the Replay of the same queue that runs first
    progress: tuple[PartitionProgress, ...] = ()
    job: Mapping[str, Any] | None = None
    assignment: str = ""  # the assignment that it was started with, as JSON
    pod_exits: tuple[PodExit, ...] = ()  # the newest last
    pod_problem: str = ""  # why its pod does not start
    now: int = 0

    @property
    def failed_pods(self) -> int:
        """The number of pods that failed since the progress last changed."""
        changed_at = max((partition.updated_at for partition in self.progress), default=0)
        return sum(1 for one in self.pod_exits if one.code and one.at >= changed_at)
