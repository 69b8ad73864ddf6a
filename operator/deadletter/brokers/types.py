"""The values that cross the broker contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs


@dataclass(slots=True, frozen=True)
class ServerInfo:
    """What the broker says of itself; `id` names the cluster, so that one box has one identity."""

    kind: str
    version: str
    brokers: int
    transactions: bool
    id: str


@dataclass(slots=True, frozen=True)
class BoxState:
    """A box as it is. None: the broker has no such notion.

    `id` changes when a box is deleted and created again under its name; empty if the broker keeps none for this box.
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
    """A dead box whose register is kept, and how to read its letters."""

    dead: str
    ledger: str
    retry: str | None = None
    dialect: str = "Auto"
    read_values: bool = False
    origin: str | None = None


@dataclass(slots=True)
class Claim:
    """A message in our hands until it is settled. `parked`: it comes from the retry box.

    `unreadable`: why nobody can decode it; its value is then what lies there, byte by byte, and it cannot be delivered.
    """

    place: Place
    message: Message
    attempts: int = 0  # deliveries tried so far
    first_failed_at: int | None = None
    parked: bool = False
    undecodable_reason: str = ""


@dataclass(slots=True, frozen=True)
class Delivered:
    """The service took it."""


@dataclass(slots=True, frozen=True)
class Buried:
    """It goes into a dead box: this queue's, or the one a route names."""

    box: str
    message: Message


@dataclass(slots=True, frozen=True)
class Parked:
    """It goes into the retry box until `due_at`, stamped with attempts and first failure."""

    message: Message
    due_at: int


@dataclass(slots=True, frozen=True)
class Discarded:
    """It is dropped, as the policy says."""


Settlement = Delivered | Buried | Parked | Discarded


@dataclass(slots=True, frozen=True)
class SubscriptionSpec:
    """What a courier works on."""

    source: str
    group: str
    dead: str
    retry: str
    ledger: str
    consumer: str  # stable name of this pod
    from_earliest: bool = False
    has_started: bool = False  # the group had offsets of the source before; without them it must not begin again


@dataclass(slots=True, frozen=True)
class ResumedGroup:
    """Where a group goes on that had lost its offsets. None: the broker does not count them."""

    skipped_messages: int | None  # messages that the source holds before that position
    remaining_messages: int | None  # messages from that position on


@dataclass(slots=True)
class Publication:
    """A message to publish for a letter. `due_at`: park it in the retry box `to`, due then."""

    to: str
    message: Message
    letter: Place
    partition: int | None = None
    due_at: int | None = None


@dataclass(slots=True)
class CommitBatch:
    """One step of a mover: all of it or nothing.

    Every offset named in `settled` belongs to the mover's partition. `selected` is what a DryRun found.
    """

    progress: PartitionProgress
    publications: Sequence[Publication] = ()
    settled: Mapping[SettledAs, Sequence[int]] = field(default_factory=dict)
    selected: Sequence[int] = ()
