"""What the monitor remembers of one queue between two sweeps: an index of its letters, and how far it has read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aiokafka import ConsumerRecord, TopicPartition
from pyroaring import BitMap64

from deadletter.brokers.errors import BoxRecreated, BrokerError
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger import ledger_partition
from deadletter.brokers.kafka.reads import to_stored_message
from deadletter.brokers.newer_ledger_records import log_skipped_record
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats, FailureGroup
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker, WorkerStatus
from deadletter.core.ledger import records
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.letter_index import OTHER_GROUP, LetterIndex
from deadletter.core.replay_progress import PartitionProgress

MAX_GROUPS = 100


@dataclass(slots=True)
class ParkedLetters:
    """The unsettled letters of a retry topic by partition, and those that disappeared from it."""

    waiting: dict[int, BitMap64] = field(default_factory=dict)
    missing: dict[int, BitMap64] = field(default_factory=dict)  # below the start of their partition: settled or lost
    # The end of the ledger partition after letters were found missing; read up to there, it tells which were settled.
    ledger_ends: dict[int, int] = field(default_factory=dict)
    lost: int = 0  # since the last statistics

    def add(self, partition: int, offset: int) -> None:
        """Add a letter that is not settled."""
        self.waiting.setdefault(partition, BitMap64()).add(offset)

    def settle(self, partition: int, offsets: Iterable[int]) -> None:
        """Remove letters that are settled."""
        settled = BitMap64(offsets)
        for letters in (self.waiting, self.missing):
            letters.setdefault(partition, BitMap64()).difference_update(settled)

    def drop_below(self, partition: int, start: int) -> None:
        """Move the letters below the start of their partition to the missing ones."""
        waiting = self.waiting.get(partition)
        if waiting and waiting.min() < start:
            missing = waiting.copy()
            missing.remove_range(start, missing.max() + 1)
            waiting.remove_range(0, start)
            self.missing.setdefault(partition, BitMap64()).update(missing)

    def unproven_partitions(self) -> list[int]:
        """Return the partitions with missing letters whose ledger end is not known yet."""
        return [
            partition for partition, missing in self.missing.items() if missing and partition not in self.ledger_ends
        ]

    def count_lost(self, ledger_position: Callable[[int], int]) -> None:
        """Count missing letters as lost once the ledger has been read far enough to know that they are not settled.

        A settlement may be behind the last stable offset for a while although its letter is already trimmed.
        """
        for partition, end in list(self.ledger_ends.items()):
            if ledger_position(partition) >= end:
                self.lost += len(self.missing.pop(partition, ()))
                del self.ledger_ends[partition]

    def take_lost(self) -> int:
        """Return the number of lost letters and reset it."""
        lost, self.lost = self.lost, 0
        return lost

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self.waiting.values())


@dataclass(slots=True)
class QueueState:
    """The state of one queue between two sweeps."""

    box: MonitoredBox
    compacted: bool = False
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    indexes: dict[int, LetterIndex] = field(default_factory=dict)  # by partition of the dead topic
    settled: dict[tuple[str, int], Settlements] = field(default_factory=dict)
    parked: ParkedLetters = field(default_factory=ParkedLetters)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    progress: dict[str, dict[int, PartitionProgress]] = field(default_factory=dict)  # by Replay uid and partition
    worker_statuses: dict[str, WorkerStatus] = field(default_factory=dict)
    heartbeats: HeartbeatTracker = field(default_factory=HeartbeatTracker)
    skipped: int = 0  # ledger records since the last statistics

    def settlements(self, topic: str, partition: int) -> Settlements:
        """Return the settled offsets of a partition of the dead or the retry topic."""
        return self.settled.setdefault((topic, partition), Settlements(topic, partition))

    def add_record(self, record: ConsumerRecord) -> None:
        """Add a record of any topic of the queue."""
        if record.topic == self.box.ledger:
            self.add_ledger_record(record)
        elif record.topic == self.box.dead:
            self.add_letter(record)
        else:
            self.add_parked_letter(record)

    def add_ledger_record(self, record: ConsumerRecord) -> None:
        """Add a record of the ledger, or skip it if only a later release knows it.

        Settlements are not skipped: their letters would count as open.
        """
        key, value = record.key or b"", record.value
        parsed = records.parse_key(key)
        with translated(self.box.ledger):
            if parsed is None:
                self._skip(key, value)
            elif parsed.kind == "settled":
                self._apply_settlements(parsed, key, value)
            else:
                try:
                    self._apply_ledger_record(parsed, key, value)
                except records.UnknownRecord:
                    self._skip(key, value)

    def _apply_ledger_record(self, parsed: records.Key, key: bytes, value: bytes | None) -> None:
        match parsed.kind:
            case "mark" if parsed.subject == self.box.dead:
                self._set_or_delete(self.marks, parsed.partition, value and records.decode_mark(key, value))
            case "tally":
                progress = value and records.decode_progress(key, value)
                partitions = self.progress.setdefault(parsed.subject, {})
                self._set_or_delete(partitions, parsed.partition, progress)
                self._set_or_delete(self.progress, parsed.subject, partitions or None)
            case "courier":
                status = value and records.decode_worker_status(key, value, WorkerStatus)
                self._set_or_delete(self.worker_statuses, parsed.subject, status)

    def _skip(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            self.skipped += 1
            log_skipped_record(self.box.ledger, key)

    @staticmethod
    def _set_or_delete(mapping: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
        if value is None:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def _apply_settlements(self, parsed: records.Key, key: bytes, value: bytes | None) -> None:
        """Settle the new offsets of a chunk.

        A chunk only grows, except after a restore from the archive or a reset; those are rare, so the index is then
        built again.
        """
        new = self.settlements(parsed.subject, parsed.partition).load(key, value)
        if parsed.subject == self.box.retry:
            # A courier removes a chunk when all of its letters are settled, so its last settlements may be unread.
            chunk = range(parsed.chunk << records.CHUNK_BITS, (parsed.chunk + 1) << records.CHUNK_BITS)
            self.parked.settle(parsed.partition, new if value is not None else chunk)
        elif parsed.subject == self.box.dead and value is None:
            self.restart(parsed.partition)
        elif parsed.subject == self.box.dead:
            self.indexes.setdefault(parsed.partition, LetterIndex()).settle(new)

    def restart(self, partition: int) -> None:
        """Read this partition of the dead topic from its start again."""
        self.indexes[partition] = LetterIndex()
        self.indexes[partition].settle(self.settlements(self.box.dead, partition))
        self.positions.pop(TopicPartition(self.box.dead, partition), None)

    def add_letter(self, record: ConsumerRecord) -> None:
        """Add a letter of the dead topic."""
        stored, box = to_stored_message(record), self.box
        letter = read_letter(stored.message, stored.place, box.dialect, box.read_values, box.origin)
        failure = letter.envelope.failure
        failed_at = letter.envelope.failed_at or record.timestamp
        index = self.indexes.setdefault(record.partition, LetterIndex())
        index.add(record.offset, fingerprint(failure), failure.type, str(failure.category), failed_at)

    def add_parked_letter(self, record: ConsumerRecord) -> None:
        """Add a letter of the retry topic, of which only the offset counts."""
        if record.offset not in self.settlements(record.topic, record.partition):
            self.parked.add(record.partition, record.offset)

    def first_offset_to_read(self, tp: TopicPartition, start: int) -> int:
        """Return the first unsettled offset from the start of a partition; of a ledger, the start."""
        if tp.topic == self.box.ledger:
            return start
        return self.settlements(tp.topic, tp.partition).first_unsettled(start)

    def check_marks(self, ends: Mapping[int, int | BrokerError]) -> None:
        """Raise BoxRecreated if a partition of the dead topic ends below its mark."""
        for partition, end in ends.items():
            if partition in self.marks and isinstance(end, int) and end <= self.marks[partition][0]:
                raise BoxRecreated(
                    f"partition {partition} of topic {self.box.dead} was created again and does not match its ledger"
                )

    def drop_below(self, tp: TopicPartition, start: int) -> None:
        """Drop the letters that retention has deleted, which are those below the start of their partition."""
        if tp.topic == self.box.dead and tp.partition in self.indexes:
            self.indexes[tp.partition].drop_below(start)
        elif tp.topic == self.box.retry:
            self.parked.drop_below(tp.partition, start)

    def ledger_position(self, partition: int) -> int:
        """Return how far the ledger partition of this partition has been read."""
        return self.positions.get(TopicPartition(self.box.ledger, ledger_partition(partition)), 0)

    def take_stats(self, now: int, caught_up: bool) -> BoxStats:
        """Return the current statistics and reset the counts of skipped records and lost letters."""
        indexes = self.indexes.values()
        skipped, self.skipped = self.skipped, 0
        return BoxStats(
            depth=sum(index.depth for index in indexes),
            oldest=min((index.oldest for index in indexes if index.oldest is not None), default=None),
            groups=merge_groups(group for index in indexes for group in index.groups()),
            caught_up=caught_up,
            upper_bound=self.compacted,
            parked=len(self.parked),
            progress={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in self.progress.items() if parts},
            couriers=self.heartbeats.alive([status for _, status in sorted(self.worker_statuses.items())], now),
            lost=self.parked.take_lost(),
            skipped=skipped,
        )


def merge_groups(groups: Iterable[FailureGroup]) -> tuple[FailureGroup, ...]:
    """Merge the groups of all partitions by fingerprint, the largest first and `other` last."""
    merged: dict[str, FailureGroup] = {}
    for group in groups:
        seen = merged.get(group.fingerprint)
        merged[group.fingerprint] = group if seen is None else replace(
            group, letters=seen.letters + group.letters,
            first_seen=min(seen.first_seen, group.first_seen), last_seen=max(seen.last_seen, group.last_seen),
        )  # fmt: skip
    ordered = sorted(merged.values(), key=lambda one: (one.fingerprint == OTHER_GROUP, -one.letters, one.fingerprint))
    return tuple(ordered[:MAX_GROUPS])
