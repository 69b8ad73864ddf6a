"""What was observed before judging. Handlers gather it; nothing here reads anything."""

# ruff: noqa: D102 - a protocol's properties are those of the broker contract, explained there

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core.replay_progress import Tally


class Group(Protocol):
    """One failure group of a reading."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def error_type(self) -> str: ...
    @property
    def category(self) -> str: ...
    @property
    def letters(self) -> int: ...
    @property
    def first_seen(self) -> int: ...
    @property
    def last_seen(self) -> int: ...


class Word(Protocol):
    """What one courier pod last said."""

    @property
    def circuit(self) -> str: ...
    @property
    def paused(self) -> str: ...
    @property
    def message(self) -> str: ...


class Reading(Protocol):
    """What one sweep saw of one dead box; brokers give it."""

    @property
    def depth(self) -> int: ...
    @property
    def oldest(self) -> int | None: ...
    @property
    def groups(self) -> Sequence[Group]: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def upper_bound(self) -> bool: ...
    @property
    def parked(self) -> int: ...
    @property
    def tallies(self) -> Mapping[str, tuple[Tally, ...]]: ...
    @property
    def couriers(self) -> Sequence[Word]: ...


@dataclass(frozen=True, slots=True)
class SecretFact:
    """A Secret by its keys, or why it could not be read."""

    keys: frozenset[str] = frozenset()
    exists: bool = True
    readable: bool = True
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Another queue that names the same dead box; foreign: of another namespace, so it is not named."""

    name: str
    foreign: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """Letters deleted from the retry box before they were delivered: how many in all, and when the last were missed."""

    letters: int
    at: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a queue is judged by."""

    connection: BrokerConnection | None = None
    policy: RetryPolicy | None = None
    queues: Mapping[str, DeadLetterQueue] = field(default_factory=dict)  # of the same namespace
    owner: Owner | None = None  # an older queue with the same dead box
    secrets: Mapping[str, SecretFact] = field(default_factory=dict)
    services: Mapping[str, bool] = field(default_factory=dict)  # name -> does it exist
    reading: Reading | None = None
    retention_ms: int | None = None
    loss: Loss | None = None
    ledger_lacks: str | None = None  # what the broker refuses to give the ledger; None: not asked yet
    owned: tuple[OwnedBox, ...] | None = None  # records of this pass; None: those of the status hold
    deployment: Mapping[str, Any] | None = None
    pod_says: str = ""  # why no pod of ours is available, when one says so
    now: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
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
    routed: tuple[str, ...] = ()  # dead boxes that routes of the queue that gets the letters lead to
    services: Mapping[str, bool] = field(default_factory=dict)
    ahead: str | None = None  # the Apply of the same queue that runs or waits before this one
    tallies: tuple[Tally, ...] = ()
    job: Mapping[str, Any] | None = None
    told: str = ""  # the assignment it began with
    exits: tuple[Exit, ...] = ()  # of its pods, the newest last
    pod_waits: str = ""  # why its pod does not start
    now: int = 0

    @property
    def stumbles(self) -> int:
        """Pods that ended since the tallies last moved."""
        moved = max((tally.updated_at for tally in self.tallies), default=0)
        return sum(1 for one in self.exits if one.code and one.at >= moved)
