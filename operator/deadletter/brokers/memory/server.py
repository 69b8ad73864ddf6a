"""The state of a broker in memory: boxes, retry boxes, consumer groups and ledgers."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import uuid4
from zlib import crc32

from deadletter.brokers.errors import BoxMissing, BrokerError, TooLarge
from deadletter.brokers.types import BoxState, Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Message
from deadletter.core.replay_progress import PartitionProgress, SettledAs
from deadletter.wall_clock import now_ms


@dataclass(slots=True)
class WaitingLetter:
    """A letter in a retry box until it is due."""

    message: Message
    due_at: int


@dataclass(slots=True)
class MemoryBox:
    """A box: letters per partition by offset. A retry box holds them with their due times instead."""

    spec: BoxSpec
    generation: int
    partitions: list[dict[int, Message]] = field(default_factory=list)
    end_offsets: list[int] = field(default_factory=list)
    waiting: dict[int, WaitingLetter] = field(default_factory=dict)
    max_message_bytes: int | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def add_partitions(self, total: int) -> None:
        """Add partitions until there are this many; none is ever removed."""
        while len(self.partitions) < total:
            self.partitions.append({})
            self.end_offsets.append(0)

    @property
    def state(self) -> BoxState:
        """The box as the contract describes it."""
        return BoxState(
            self.spec.name,
            len(self.partitions),
            self.spec.retention_ms,
            max_message_bytes=self.max_message_bytes,
            id=self.id,
        )

    def first_offset(self, partition: int) -> int:
        """Return the first offset that still holds a letter, or the end offset."""
        return next(iter(self.partitions[partition]), self.end_offsets[partition])

    def append(self, message: Message, partition: int | None) -> tuple[int, int]:
        """Append a message; return its partition and offset."""
        chosen = crc32(message.key or b"") % len(self.partitions) if partition is None else partition
        offset = self.end_offsets[chosen]
        self.partitions[chosen][offset] = message
        self.end_offsets[chosen] += 1
        return chosen, offset

    def park(self, message: Message, due_at: int) -> tuple[int, int]:
        """Park a letter; return its partition and offset."""
        offset = self.end_offsets[0]
        self.end_offsets[0] += 1
        self.waiting[offset] = WaitingLetter(message, due_at)
        return 0, offset


@dataclass(slots=True)
class MemoryGroup:
    """A consumer group: its positions, the holders of claims, released messages and recorded attempts."""

    next_offsets: dict[int, int] = field(default_factory=dict)
    holders: dict[tuple[bool, int, int], str] = field(default_factory=dict)  # (parked, partition, offset) -> consumer
    released: list[tuple[int, int]] = field(default_factory=list)
    attempts: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)

    def release(self, consumer: str) -> None:
        """Release every claim of this consumer, so that others may claim the messages."""
        keys = sorted(key for key, holder in self.holders.items() if holder == consumer)
        for key in keys:
            del self.holders[key]
        of_source = ((partition, offset) for parked, partition, offset in keys if not parked)
        self.released = sorted({*self.released, *of_source})


@dataclass(slots=True)
class MemoryLedger:
    """Settlements of the letters of a dead box, and records of Replays and workers."""

    settled: dict[tuple[str, int], dict[SettledAs, set[int]]] = field(default_factory=lambda: defaultdict(dict))
    selected: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    published: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)
    progress: dict[str, dict[int, PartitionProgress]] = field(default_factory=dict)
    generations: dict[tuple[str, int], int] = field(default_factory=dict)
    worker_statuses: dict[str, WorkerStatus] = field(default_factory=dict)

    def is_settled(self, box: str, partition: int, offset: int) -> bool:
        """True if the letter is settled, for whatever reason."""
        return any(offset in offsets for offsets in self.settled[box, partition].values())

    def settle(self, box: str, partition: int, why: SettledAs, offset: int) -> None:
        """Settle a letter for this reason only: a restored letter is not archived any more."""
        for offsets in self.settled[box, partition].values():
            offsets.discard(offset)
        self.settled[box, partition].setdefault(why, set()).add(offset)


class MemoryServer:
    """All state of a broker. An entry in `refuse` makes every write to a box fail; `down` makes every call fail."""

    def __init__(self, clock: Callable[[], int] = now_ms, name: str = "memory") -> None:
        self.clock = clock
        self.name = name
        self.boxes: dict[str, MemoryBox] = {}
        self.groups: dict[tuple[str, str], MemoryGroup] = defaultdict(MemoryGroup)
        self.ledgers: dict[str, MemoryLedger] = defaultdict(MemoryLedger)
        self.epochs: dict[tuple[str, int], int] = defaultdict(int)
        self.refuse: dict[str, BrokerError] = {}
        self.down: BrokerError | None = None
        self._last_generation = 0

    def raise_if_down(self) -> None:
        """Raise the error in `down`, if it is set."""
        if self.down is not None:
            raise self.down

    def get_box(self, name: str) -> MemoryBox:
        """Return the box of this name; BoxMissing if it does not exist."""
        self.raise_if_down()
        if name not in self.boxes:
            raise BoxMissing(f"box {name} does not exist")
        return self.boxes[name]

    def create_box(self, spec: BoxSpec) -> MemoryBox:
        """Create an empty box."""
        self._last_generation += 1
        self.boxes[spec.name] = box = MemoryBox(spec, self._last_generation)
        box.add_partitions(1 if spec.is_retry_box else spec.partitions or 1)
        return box

    def writable_box(self, name: str, message: Message) -> MemoryBox:
        """Return the box if it accepts this message; otherwise raise the error."""
        box = self.get_box(name)
        if name in self.refuse:
            raise self.refuse[name]
        if box.max_message_bytes is not None and message.size > box.max_message_bytes:
            raise TooLarge(f"a message exceeds the limit of box {name}")
        return box

    def publish(self, publication: Publication) -> tuple[str, int, int]:
        """Append or park a message; return box, partition and offset."""
        box = self.writable_box(publication.to, publication.message)
        message = replace(publication.message, timestamp=publication.message.timestamp or self.clock())
        if box.spec.is_retry_box:
            return (publication.to, *box.park(message, publication.due_at or 0))
        return (publication.to, *box.append(message, publication.partition))

    def seed(self, box: str, messages: list[Message], partition: int | None = None) -> None:
        """Append messages as an application would; create the box if it is missing. For tests."""
        if box not in self.boxes:
            self.create_box(BoxSpec(box, 1))
        for message in messages:
            self.boxes[box].append(replace(message, timestamp=message.timestamp or self.clock()), partition)

    def release_claims(self, source: str, group: str, consumer: str) -> None:
        """Release every claim of a consumer, as a rebalance does. For tests."""
        self.groups[source, group].release(consumer)
