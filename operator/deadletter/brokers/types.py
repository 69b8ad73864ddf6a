"""Data types of the broker contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs


@dataclass(slots=True, frozen=True)
class ServerInfo:
    """What a server reports about itself. `id` identifies the cluster, whatever address it is reached by."""

    kind: str
    version: str
    brokers: int
    transactions: bool
    id: str


@dataclass(slots=True, frozen=True)
class BoxState:
    """A box as it exists on the broker; None where the broker has no such setting.

    `id` changes when a box is deleted and created again under the same name. It is empty if the broker stores none.
    """

    name: str
    partitions: int = 1
    retention_ms: int | None = None
    compacted: bool = False
    max_message_bytes: int | None = None
    id: str = ""


@dataclass(slots=True)
class StoredMessage:
    """A message and where it was read."""

    place: Place
    message: Message


@dataclass(slots=True, frozen=True)
class MonitoredBox:
    """A dead box to sweep, its ledger and retry box, and how its letters are read."""

    dead: str
    ledger: str
    retry: str | None = None
    dialect: str = "Auto"
    read_values: bool = False
    origin: str | None = None


@dataclass(slots=True)
class Claim:
    """A message that one worker holds until it is settled.

    `undecodable_reason` is set if the message cannot be decoded. Its value is then the raw bytes, and it cannot be
    delivered.
    """

    place: Place
    message: Message
    attempts: int = 0  # deliveries tried so far
    first_failed_at: int | None = None
    parked: bool = False  # read from the retry box
    undecodable_reason: str = ""


@dataclass(slots=True, frozen=True)
class Delivered:
    """The service accepted the message."""


@dataclass(slots=True, frozen=True)
class Buried:
    """The message goes into a dead box: the queue's own, or the one that a route names."""

    box: str
    message: Message


@dataclass(slots=True, frozen=True)
class Parked:
    """The message goes into the retry box until `due_at`, with its attempts and first failure in the headers."""

    message: Message
    due_at: int


@dataclass(slots=True, frozen=True)
class Discarded:
    """The message is dropped, as the policy demands."""


Settlement = Delivered | Buried | Parked | Discarded


@dataclass(slots=True, frozen=True)
class SubscriptionSpec:
    """The boxes, the consumer group and the member name of a subscription."""

    source: str
    group: str
    dead: str
    retry: str
    ledger: str
    consumer: str  # stable name of this pod
    from_earliest: bool = False
    has_started: bool = False  # the group had offsets of the source before; without offsets it must not start again


@dataclass(slots=True, frozen=True)
class ResumedGroup:
    """Position at which a group resumes that had lost its offsets; None if the broker cannot count the messages."""

    skipped_messages: int | None  # of the source, before the position
    remaining_messages: int | None  # of the source, from the position on


@dataclass(slots=True)
class Publication:
    """A message to publish for a letter. With `due_at`, `to` is a retry box and the letter is parked until then."""

    to: str
    message: Message
    letter: Place
    partition: int | None = None
    due_at: int | None = None


@dataclass(slots=True)
class CommitBatch:
    """What a partition writer commits at once.

    Every offset of `settled` belongs to the partition of the writer. `selected` are offsets that a DryRun has matched.
    """

    progress: PartitionProgress
    publications: Sequence[Publication] = ()
    settled: Mapping[SettledAs, Sequence[int]] = field(default_factory=dict)
    selected: Sequence[int] = ()
