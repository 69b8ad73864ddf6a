"""What the sweep remembers of one queue: its register, and how far it has read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from aiokafka import ConsumerRecord, TopicPartition
from pyroaring import BitMap64

from deadletter.brokers.errors import BoxRecreated, BrokerError
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger import ledger_partition
from deadletter.brokers.kafka.reads import to_stored_message
from deadletter.brokers.skipped_records import log_skipped
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_stats import BoxStats, FailureGroup
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker, WorkerStatus
from deadletter.core.ledger import records
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.letter_index import OTHER_GROUP, LetterIndex
from deadletter.core.replay_progress import PartitionProgress

MAX_GROUPS = 100


@dataclass(slots=True)
class QueueState:
    """One queue between sweeps."""

    watched: MonitoredBox
    compacted: bool = False
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    indexes: dict[int, LetterIndex] = field(default_factory=dict)
    settled: dict[tuple[str, int], Settlements] = field(default_factory=dict)
    parked: dict[int, BitMap64] = field(default_factory=dict)
    missing: dict[int, BitMap64] = field(default_factory=dict)  # parked letters below their topic's start, settled or lost
    # Where the ledger ended after they were found gone: read up to there, it tells which of them were settled.
    ledger_ends: dict[int, int] = field(default_factory=dict)
    lost: int = 0  # parked letters since the last reading
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    tallies: dict[str, dict[int, PartitionProgress]] = field(default_factory=dict)
    worker_statuses: dict[str, WorkerStatus] = field(default_factory=dict)
    heartbeats: HeartbeatTracker = field(default_factory=HeartbeatTracker)
    skipped: int = 0  # records of the ledger since the last reading

    def settlements(self, box: str, partition: int) -> Settlements:
        """The settled offsets of a partition of the dead or the retry box."""
        return self.settled.setdefault((box, partition), Settlements(box, partition))

    def add_ledger_record(self, record: ConsumerRecord) -> None:
        """Take in one record of the ledger, or skip it if only a later release knows it.

        Settlements are not skipped: their letters would count as open.
        """
        key, value = record.key or b"", record.value
        parsed = records.parse_key(key)
        with translated(self.watched.ledger):
            if parsed is None:
                self._skip(key, value)
            elif parsed.kind == "settled":
                self._settle(parsed, key, value)
            else:
                try:
                    self._note(parsed, key, value)
                except records.UnknownRecord:
                    self._skip(key, value)

    def _note(self, parsed: records.Key, key: bytes, value: bytes | None) -> None:
        match parsed.kind:
            case "mark" if parsed.subject == self.watched.dead:
                self._put(self.marks, parsed.partition, value and records.decode_mark(key, value))
            case "tally":
                tally = value and records.decode_progress(key, value)
                partitions = self.tallies.setdefault(parsed.subject, {})
                self._put(partitions, parsed.partition, tally)
                self._put(self.tallies, parsed.subject, partitions or None)
            case "courier":
                self._put(self.worker_statuses, parsed.subject, value and records.decode_worker_status(key, value, WorkerStatus))

    def _skip(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            self.skipped += 1
            log_skipped(self.watched.ledger, key)

    @staticmethod
    def _put(where: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
        if value is None:
            where.pop(key, None)
        else:
            where[key] = value

    def _settle(self, parsed: records.Key, key: bytes, value: bytes | None) -> None:
        """A chunk only grows, but for a restored archive or a reset: those are rare, so start the register anew."""
        fresh = self.settlements(parsed.subject, parsed.partition).load(key, value)
        if parsed.subject == self.watched.retry:
            for letters in (self.parked, self.missing):
                letters.setdefault(parsed.partition, BitMap64()).difference_update(BitMap64(fresh))
        elif parsed.subject == self.watched.dead and value is None:
            self.restart(parsed.partition)
        elif parsed.subject == self.watched.dead:
            self.indexes.setdefault(parsed.partition, LetterIndex()).settle(fresh)

    def restart(self, partition: int) -> None:
        """Read this partition of the dead box from its beginning again."""
        self.indexes[partition] = LetterIndex()
        self.indexes[partition].settle(self.settlements(self.watched.dead, partition))
        self.positions.pop(TopicPartition(self.watched.dead, partition), None)

    def add_letter(self, record: ConsumerRecord) -> None:
        """Take in one letter."""
        one = to_stored_message(record)
        watched = self.watched
        letter = read_letter(one.message, one.place, watched.dialect, watched.read_values, watched.origin)
        failure = letter.envelope.failure
        when = letter.envelope.failed_at or record.timestamp
        register = self.indexes.setdefault(record.partition, LetterIndex())
        register.add(record.offset, fingerprint(failure), failure.type, str(failure.category), when)

    def add_parked_letter(self, record: ConsumerRecord) -> None:
        """Take in one parked letter: only its place counts."""
        if record.offset not in self.settlements(record.topic, record.partition):
            self.parked.setdefault(record.partition, BitMap64()).add(record.offset)

    def add_record(self, record: ConsumerRecord) -> None:
        """Take in a record of whichever box."""
        if record.topic == self.watched.ledger:
            self.add_ledger_record(record)
        elif record.topic == self.watched.dead:
            self.add_letter(record)
        else:
            self.add_parked_letter(record)

    def first_offset_to_read(self, tp: TopicPartition, start: int) -> int:
        """Where reading begins: at the first unsettled offset."""
        if tp.topic == self.watched.ledger:
            return start
        return self.settlements(tp.topic, tp.partition).first_unsettled(start)

    def check_marks(self, ends: Mapping[int, int | BrokerError]) -> None:
        """The log must not end below a mark."""
        for partition, end in ends.items():
            if partition in self.marks and isinstance(end, int) and end <= self.marks[partition][0]:
                raise BoxRecreated(
                    f"{self.watched.dead}: partition {partition} was made anew; its ledger is of another"
                )

    def drop_below(self, tp: TopicPartition, start: int) -> None:
        """Retention ate everything below `start`."""
        if tp.topic == self.watched.dead and tp.partition in self.indexes:
            self.indexes[tp.partition].drop_below(start)
        elif tp.topic == self.watched.retry and tp.partition in self.parked:
            self._drop_parked(tp.partition, start)

    def _drop_parked(self, partition: int, start: int) -> None:
        waiting = self.parked[partition]
        if waiting and waiting.min() < start:
            gone = waiting.copy()
            gone.remove_range(start, gone.max() + 1)
            waiting.remove_range(0, start)
            self.missing.setdefault(partition, BitMap64()).update(gone)

    def count_lost(self) -> None:
        """Count the gone letters as lost for which the ledger has been read far enough to know.

        A settlement may be behind the last stable offset for a while, and its letter already trimmed.
        """
        for partition, proof in list(self.ledger_ends.items()):
            if self.positions.get(TopicPartition(self.watched.ledger, ledger_partition(partition)), 0) >= proof:
                self.lost += len(self.missing.pop(partition, ()))
                del self.ledger_ends[partition]

    def take_stats(self, now: int, caught_up: bool) -> BoxStats:
        """Return the current reading and reset the counts of skipped records and lost letters."""
        registers = self.indexes.values()
        (skipped, self.skipped), (lost, self.lost) = (self.skipped, 0), (self.lost, 0)
        return BoxStats(
            depth=sum(register.depth for register in registers),
            oldest=min((register.oldest for register in registers if register.oldest is not None), default=None),
            groups=merge_groups(group for register in registers for group in register.groups()),
            caught_up=caught_up,
            upper_bound=self.compacted,
            parked=sum(len(bits) for bits in self.parked.values()),
            progress={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in self.tallies.items() if parts},
            couriers=self.heartbeats.alive([word for _, word in sorted(self.worker_statuses.items())], now),
            lost=lost,
            skipped=skipped,
        )


def merge_groups(groups: Iterable[FailureGroup]) -> tuple[FailureGroup, ...]:
    """Groups of all partitions by fingerprint, the largest first, `other` last."""
    merged: dict[str, FailureGroup] = {}
    for group in groups:
        seen = merged.get(group.fingerprint)
        merged[group.fingerprint] = group if seen is None else replace(
            group, letters=seen.letters + group.letters,
            first_seen=min(seen.first_seen, group.first_seen), last_seen=max(seen.last_seen, group.last_seen),
        )  # fmt: skip
    ordered = sorted(merged.values(), key=lambda one: (one.fingerprint == OTHER_GROUP, -one.letters, one.fingerprint))
    return tuple(ordered[:MAX_GROUPS])
