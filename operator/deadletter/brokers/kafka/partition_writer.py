"""Write to one partition of a dead topic: publish, settle and count letters in one transaction.

One writer at a time: opening the transactional id of a partition fences every earlier writer.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from pyroaring import BitMap

from deadletter.brokers.errors import BoxRecreated
from deadletter.brokers.kafka import hanging_transactions, ledger_topic, reads, send_batches
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.fetch import MESSAGES_PER_BATCH
from deadletter.brokers.kafka.ledger import ledger_partition, pack_ledger_records, read_ledger
from deadletter.brokers.kafka.offsets import end_offsets, start_offsets
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import CommitBatch, StoredMessage
from deadletter.core.ledger import records
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import PartitionProgress, SettledAs

MAX_CACHED_BATCHES = 10_000 // MESSAGES_PER_BATCH  # per partition: what a Replay scans between two commits
Records = list[tuple[bytes, bytes | None]]


class TimestampCache:
    """The timestamps of the messages read lately, so that a writer need not read the one of its mark again."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, int], list[dict[int, int]]] = {}

    def add(self, batch: Sequence[StoredMessage]) -> None:
        """Remember a batch; all of its messages are of one partition."""
        place = batch[0].place
        cached = self._batches.setdefault((place.box, place.partition), [])
        cached.append({one.place.offset: one.message.timestamp for one in batch})
        del cached[:-MAX_CACHED_BATCHES]

    def timestamp(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the timestamp of the message at this offset; None if it was not read lately."""
        for batch in self._batches.get((topic, partition), ()):
            if offset in batch:
                return batch[offset]
        return None


class KafkaPartitionWriter:
    """Implement `PartitionWriter`: each commit is one transaction, so that a killed writer did all of it or nothing."""

    def __init__(
        self,
        kafka: KafkaClient,
        producer: TransactionalProducer,
        topic: str,
        ledger: str,
        partition: int,
        uid: str,
        archived: bool,
        timestamps: TimestampCache,
    ) -> None:
        self._kafka, self._producer, self._timestamps = kafka, producer, timestamps
        self._topic, self._ledger, self._partition, self._uid = topic, ledger, partition, uid
        self._archived = archived
        self._settled = Settlements(topic, partition)
        self._chunks: dict[bytes, BitMap] = {}
        self._highest: dict[TopicPartition, int] = {}  # offset that letters of this partition got, under any uid
        self._mark: tuple[int, int] | None = None
        self._progress: PartitionProgress | None = None
        self._obsolete_records: Records = []

    async def load(self) -> None:
        """Read the ledger, after the producer has fenced all others, and check that the topic is still the same."""
        ledger_tp = TopicPartition(self._ledger, ledger_partition(self._partition))
        await hanging_transactions.complete_hanging_in_ledger(self._kafka, self._producer, ledger_tp, self._partition)
        entries = await read_ledger(self._kafka, self._ledger, self._is_relevant, [ledger_tp.partition])
        with translated(self._ledger):
            for key, (parsed, value) in entries.items():
                self._load_record(key, parsed, value)
        await check_mark(self._kafka, self._topic, self._partition, self._mark)
        starts = await start_offsets(self._kafka, self._topic, [self._partition])
        self._obsolete_records = list(self._settled.drop_below(starts[self._partition]))

    def _is_relevant(self, key: records.Key) -> bool:
        if key.kind in ("settled", "mark"):
            return (key.subject, key.partition) == (self._topic, self._partition)
        if key.kind == "produced":
            return key.settler in (None, self._partition)
        return key.kind in ("tally", "selected") and (key.subject, key.partition) == (self._uid, self._partition)

    def _load_record(self, key: bytes, parsed: records.Key, value: bytes) -> None:
        match parsed.kind:
            case "settled":
                self._settled.load(key, value)
            case "mark":
                self._mark = records.decode_mark(key, value)
            case "tally":
                self._progress = records.decode_progress(key, value)
            case _:
                bits = records.decode_chunk(key, value)
                if parsed.kind == "produced":
                    target = TopicPartition(parsed.topic, parsed.partition)
                    self._highest[target] = max(self._highest.get(target, 0), records.highest_offset(parsed, bits))
                if parsed.subject == self._uid:
                    self._chunks[key] = bits

    @property
    def progress(self) -> PartitionProgress | None:
        """Return what an earlier writer of the same Replay had counted."""
        return self._progress

    def is_open(self, offset: int) -> bool:
        """True if the letter is not settled; with `archived`, if it is archived and not restored."""
        if self._archived:
            return self._settled.is_settled_as(SettledAs.Archived, offset)
        return offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """Commit the whole batch or nothing; after an error this writer cannot be used any more."""
        packed = await send_batches.pack_publications(batch.publications, self._producer.topic_limits)
        mark = await self._new_mark(batch)
        await self._complete_hanging(packed)
        async with self._producer.transaction() as transaction:
            offsets = await transaction.send(packed) if packed else []
            entries = self._settlement_records(batch, mark) + self._obsolete_records
            entries += self._produced_records(packed, offsets) + self._selected_records(batch)
            key = records.progress_key(self._uid, self._partition)
            entries.append((key, records.encode_progress(key, batch.progress)))
            packed = [await pack_ledger_records(self._ledger, self._partition, entries, self._producer.topic_limits)]
            await transaction.send(packed)
        self._obsolete_records, self._progress = [], batch.progress

    async def _complete_hanging(self, packed: Iterable[send_batches.PartitionBatches]) -> None:
        """Complete the transactions that an earlier writer left open in the partitions now written to first.

        A transaction was committed if the ledger knows its messages; a Replay before this one may have sent them.
        """
        new = {one.topic_partition for one in packed} - self._producer.checked_partitions
        found = await hanging_transactions.first_open_offsets(self._kafka, new) if new else {}
        for committed in (True, False):
            tps = [tp for tp, first in found.items() if (self._highest.get(tp, -1) >= first) is committed]
            if tps:
                await self._producer.write_markers(tps, committed)
        self._producer.checked_partitions |= new

    async def _new_mark(self, batch: CommitBatch) -> tuple[int, int] | None:
        """Return highest settled offset and timestamp of its letter if it is higher than before."""
        highest = max((max(offsets) for offsets in batch.settled.values() if offsets), default=-1)
        if highest < 0 or (self._mark is not None and highest <= self._mark[0]):
            return None
        timestamp = self._timestamps.timestamp(self._topic, self._partition, highest)
        if timestamp is None:
            timestamp = await reads.read_timestamp(self._kafka, self._topic, self._partition, highest)
        return None if timestamp is None else (highest, timestamp)

    def _settlement_records(self, batch: CommitBatch, mark: tuple[int, int] | None) -> Records:
        for settled_as, offsets in batch.settled.items():
            if self._archived and settled_as is not SettledAs.Archived:
                self._settled.remove(SettledAs.Archived, offsets)
            self._settled.add(settled_as, offsets)
        entries: Records = list(self._settled.take_changed_records())
        if mark is not None:
            key = records.mark_key(self._topic, self._partition)
            entries.append((key, records.encode_mark(key, *mark)))
            self._mark = mark
        return entries

    def _produced_records(
        self, packed: Iterable[send_batches.PartitionBatches], offsets: Iterable[list[int]]
    ) -> Records:
        entries: Records = []
        for target, produced in zip(packed, offsets, strict=True):
            for chunk, bits in records.split_into_chunks(produced).items():
                key = records.produced_key(self._uid, self._partition, target.topic, target.partition, chunk)
                entries.append(self._merge_chunk(key, bits))
        return entries

    def _selected_records(self, batch: CommitBatch) -> Records:
        chunks: Mapping[int, BitMap] = records.split_into_chunks(batch.selected)
        return [
            self._merge_chunk(records.selected_key(self._uid, self._partition, number), bits)
            for number, bits in chunks.items()
        ]

    def _merge_chunk(self, key: bytes, bits: BitMap) -> tuple[bytes, bytes]:
        merged = self._chunks.setdefault(key, BitMap())
        merged |= bits
        self._chunks[key] = merged
        return key, records.encode_chunk(key, merged)


async def check_mark(kafka: KafkaClient, topic: str, partition: int, mark: tuple[int, int] | None) -> None:
    """Raise BoxRecreated if the letter of the mark is not where it was.

    A topic that was deleted and created again starts at offset 0, and the old ledger would call its letters settled.
    """
    if mark is None:
        return
    offset, timestamp = mark
    end = (await end_offsets(kafka, topic, [partition]))[partition]
    found = await reads.read_timestamp(kafka, topic, partition, offset) if offset < end else None
    if offset >= end or found not in (None, timestamp):
        raise BoxRecreated(
            f"partition {partition} of topic {topic} was created again and does not match its ledger; if that was"
            ' intended, annotate the DeadLetterQueue with deadletter.dev/reset-ledger: "true"'
        )


@asynccontextmanager
async def open_partition_writer(
    kafka: KafkaClient, topic: str, ledger: str, partition: int, uid: str, archived: bool, timestamps: TimestampCache
) -> AsyncIterator[KafkaPartitionWriter]:
    """Open the producer, which fences the writer before and ends its transaction, then read the ledger."""
    if not 0 <= partition < await kafka.partition_count(topic):
        raise BoxRecreated(f"topic {topic} has no partition {partition}")
    await ledger_topic.ensure_ledger(kafka, ledger, topic)
    producer = await TransactionalProducer.open(kafka, f"dlq.{topic}.{partition}")
    try:
        writer = KafkaPartitionWriter(kafka, producer, topic, ledger, partition, uid, archived, timestamps)
        await writer.load()
        yield writer
    finally:
        await producer.close()
