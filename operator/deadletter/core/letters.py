"""Messages, places, envelopes and letters: the nouns every floor speaks in.

They are values and never changed in place; not frozen, because freezing costs a fifth of the time a letter takes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]
SEQUENCE_BITS = 64
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class Category(StrEnum):
    """What kind of failure it was; each kind has a default policy."""

    Transient = "Transient"
    Network = "Network"
    Resource = "Resource"
    Permission = "Permission"
    Validation = "Validation"
    Permanent = "Permanent"


class Confidence(StrEnum):
    """How sure a dialect's reader is that it read its own."""

    Pinned = "Pinned"  # the queue names the dialect
    Certain = "Certain"  # a marker no other system writes
    Likely = "Likely"  # a combination of common names
    Guess = "Guess"  # the generic fallback
    Unknown = "Unknown"  # nothing was recognised


@dataclass(slots=True)
class Message:
    """What an application sent. `timestamp` is in milliseconds since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:  # a loop: it is asked of every letter, and sum() takes a quarter longer
            size += len(name)
            if value:
                size += len(value)
        return size


class Place(NamedTuple):
    """Where a message lies: box, partition, offset.

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
        """The place of a Redis entry id (`ms-seq`)."""
        ms, _, seq = entry_id.partition("-")
        return cls(box, 0, int(ms) << SEQUENCE_BITS | int(seq or 0))


@dataclass(slots=True)
class Failure:
    """Why it failed, bounded: texts are cut before they come here."""

    type: str = ""
    message: str = ""
    category: Category = Category.Transient
    status: int | None = None
    stack: str = ""


@dataclass(slots=True)
class Origin:
    """A topic or stream with partition and offset as far as they are known."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None


@dataclass(slots=True)
class Envelope:
    """What is known of a failure. Times are milliseconds since the epoch."""

    dialect: str = "none"
    confidence: Confidence = Confidence.Unknown
    origin: Origin = field(default_factory=Origin)  # where it FIRST came from
    hop: Origin = field(default_factory=Origin)  # where it was LAST consumed from
    group: str | None = None  # the consumer group that failed
    attempts: int = 0
    first_failed_at: int | None = None
    failed_at: int | None = None
    failure: Failure = field(default_factory=Failure)
    reason: str = ""  # why it was buried: AttemptsExhausted, Expired, ...
    due_at: int | None = None
    replays: int = 0
    replay: str | None = None  # uid of the last Replay that sent it
    id: str | None = None  # dlq-id: names the message through its whole life


@dataclass(slots=True)
class Letter:
    """A message that failed, where it lies, and its envelope."""

    message: Message
    place: Place
    envelope: Envelope


def failure_time(letter: Letter) -> int:
    """When it failed, as far as is known: the envelope's word, or the time of the message itself."""
    known = letter.envelope.failed_at
    return letter.message.timestamp if known is None else known
