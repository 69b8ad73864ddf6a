"""Value types that all layers share: messages, places, envelopes and letters.

They are never changed in place. They are not frozen, because freezing costs a fifth of the time spent on a letter.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]
SEQUENCE_BITS = 64
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class Category(StrEnum):
    """Category of a failure; it decides whether and how a message is retried by default."""

    Transient = "Transient"
    Network = "Network"
    Resource = "Resource"
    Permission = "Permission"
    Validation = "Validation"
    Permanent = "Permanent"


class Confidence(StrEnum):
    """How certain it is that a letter is written in the detected dialect."""

    Pinned = "Pinned"  # the queue names the dialect
    Certain = "Certain"  # a marker that no other system writes
    Likely = "Likely"  # a combination of common names
    Guess = "Guess"  # the generic fallback
    Unknown = "Unknown"  # nothing was recognised


@dataclass(slots=True)
class Message:
    """A message as an application sent it. `timestamp` is in milliseconds since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0

    @property
    def size(self) -> int:
        """Size of key, value and headers in bytes."""
        size = len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:  # hot path: sum() takes a quarter longer
            size += len(name)
            if value:
                size += len(value)
        return size


class Place(NamedTuple):
    """Position of a message: box, partition, offset.

    A Redis entry id `ms-seq` is partition 0 and offset `ms << 64 | seq`: one ordered number on both brokers.
    """

    box: str
    partition: int
    offset: int

    @property
    def id(self) -> str:
        """`partition-offset` on Kafka, the entry id on Redis."""
        if self.offset > SEQUENCE_MASK:
            return f"{self.offset >> SEQUENCE_BITS}-{self.offset & SEQUENCE_MASK}"
        return f"{self.partition}-{self.offset}"

    @classmethod
    def from_entry_id(cls, box: str, entry_id: str) -> "Place":
        """Return the place of a Redis entry id (`ms-seq`)."""
        ms, _, seq = entry_id.partition("-")
        return cls(box, 0, int(ms) << SEQUENCE_BITS | int(seq or 0))


@dataclass(slots=True)
class Failure:
    """Why a message failed; texts are already truncated."""

    type: str = ""
    message: str = ""
    category: Category = Category.Transient
    status: int | None = None
    stack: str = ""


@dataclass(slots=True)
class Origin:
    """Topic or stream, partition and offset that a message came from, as far as they are known."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None


@dataclass(slots=True)
class Envelope:
    """Metadata of a dead letter. Times are milliseconds since the epoch."""

    dialect: str = "none"
    confidence: Confidence = Confidence.Unknown
    origin: Origin = field(default_factory=Origin)  # where it was consumed first
    hop: Origin = field(default_factory=Origin)  # where it was consumed last
    group: str | None = None  # the consumer group that failed to process it
    attempts: int = 0
    first_failed_at: int | None = None
    failed_at: int | None = None
    failure: Failure = field(default_factory=Failure)
    reason: str = ""  # why it was buried: AttemptsExhausted, Expired, ...
    due_at: int | None = None
    replays: int = 0
    replay: str | None = None  # uid of the last Replay that sent it back
    id: str | None = None  # dlq-id: stays the same through all retries and replays


@dataclass(slots=True)
class Letter:
    """A message that failed, its place in a box, and its envelope."""

    message: Message
    place: Place
    envelope: Envelope


def failure_time(letter: Letter) -> int:
    """Return when the letter failed; the message's own timestamp if its envelope does not tell."""
    known = letter.envelope.failed_at
    return letter.message.timestamp if known is None else known
