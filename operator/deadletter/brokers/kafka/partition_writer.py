"""The one settler of a box partition: publish, settle, count, in one transaction."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from pyroaring import BitMap

from deadletter.brokers.errors import BoxRecreated
from deadletter.brokers.kafka import hanging_transactions, reads, record_batches, topics
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger import pack_ledger_records, ledger_partition, read_ledger
from deadletter.brokers.kafka.timestamp_cache import TimestampCache
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import CommitBatch
from deadletter.core.ledger import records
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import PartitionProgress, SettledAs

Entries = list[tuple[bytes, bytes | None]]


class KafkaPartitionWriter:
    """See `base.Mover`. Killed before the commit: nothing happened; after it: all of the step happened."""

    def __init__(self, kafka: KafkaClient, room: TransactionalProducer, box: str, ledger: str, partition: int, uid: str) -> None:
        self._kafka, self._room = kafka, room
        self._box, self._ledger, self._partition, self._uid = box, ledger, partition, uid
        self._archived = False
        self._sightings = TimestampCache()
        self._settled = Settlements(box, partition)
        self._chunks: dict[bytes, BitMap] = {}
        self._highest: dict[TopicPartition, int] = {}  # offset that letters of this partition got, under any uid
        self._mark: tuple[int, int] | None = None
        self._tally: PartitionProgress | None = None
        self._gone: Entries = []

    async def load(self, archived: bool, sightings: TimestampCache) -> None:
        """Read the ledger after our producer fenced all others; check that the box is still the same."""
        self._archived, self._sightings = archived, sightings
        where = TopicPartition(self._ledger, ledger_partition(self._partition))
        await hanging_transactions.complete_hanging_in_ledger(self._kafka, self._room, where, self._partition)
        kept = await read_ledger(self._kafka, self._ledger, self._concerns, [ledger_partition(self._partition)])
        with translated(self._ledger):
            for key, (parsed, value) in kept.items():
                self._take(key, parsed, value)
        await check_mark(self._kafka, self._box, self._partition, self._mark)
        starts = await self._kafka.offsets_at(self._box, [self._partition], EARLIEST)
        self._gone = list(self._settled.drop_below(starts[self._partition]))

    def _concerns(self, key: records.Key) -> bool:
        if key.kind in ("settled", "mark"):
            return (key.subject, key.partition) == (self._box, self._partition)
        if key.kind == "produced":
            return key.settler in (None, self._partition)
        return key.kind in ("tally", "selected") and (key.subject, key.partition) == (self._uid, self._partition)

    def _take(self, key: bytes, parsed: records.Key, value: bytes) -> None:
        match parsed.kind:
            case "settled":
                self._settled.load(key, value)
            case "mark":
                self._mark = records.decode_mark(key, value)
            case "tally":
                self._tally = records.decode_progress(key, value)
            case _:
                bits = records.decode_chunk(key, value)
                if parsed.kind == "produced":
                    place = TopicPartition(parsed.topic, parsed.partition)
                    self._highest[place] = max(self._highest.get(place, 0), records.highest_offset(parsed, bits))
                if parsed.subject == self._uid:
                    self._chunks[key] = bits

    @property
    def progress(self) -> PartitionProgress | None:
        """What an earlier mover of the same Replay had counted."""
        return self._tally

    def is_open(self, offset: int) -> bool:
        """Is the letter there to be taken?"""
        if self._archived:
            return self._settled.is_settled_as(SettledAs.Archived, offset)
        return offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """All of the step or nothing; after an error this mover is spent."""
        packed = await record_batches.pack_publications(batch.publications, self._room.topic_limits)
        mark = await self._new_mark(batch)
        await self._clear(packed)
        async with self._room.transaction() as transaction:
            offsets = await transaction.send(packed) if packed else []
            entries = self._settle(batch, mark) + self._gone
            entries += self._note(packed, offsets) + self._select(batch)
            key = records.progress_key(self._uid, self._partition)
            entries.append((key, records.encode_progress(key, batch.progress)))
            packed = [await pack_ledger_records(self._ledger, self._partition, entries, self._room.topic_limits)]
            await transaction.send(packed)
        self._gone, self._tally = [], batch.progress

    async def _clear(self, packed: Iterable[record_batches.PartitionBatches]) -> None:
        """Before the first message to a partition: end what an earlier one of us left open there.

        It was committed if the ledger knows of it; a Replay before this one may have sent it.
        """
        new = {parcel.topic_partition for parcel in packed} - self._room.checked_partitions
        found = await hanging_transactions.first_open_offsets(self._kafka, new) if new else {}
        for committed in (True, False):
            places = [place for place, first in found.items() if (self._highest.get(place, -1) >= first) is committed]
            if places:
                await self._room.write_markers(places, committed)
        self._room.checked_partitions |= new

    async def _new_mark(self, step: CommitBatch) -> tuple[int, int] | None:
        highest = max((max(offsets) for offsets in step.settled.values() if offsets), default=-1)
        if highest < 0 or (self._mark is not None and highest <= self._mark[0]):
            return None
        timestamp = self._sightings.timestamp(self._box, self._partition, highest)
        if timestamp is None:
            timestamp = await reads.read_timestamp(self._kafka, self._box, self._partition, highest)
        return None if timestamp is None else (highest, timestamp)

    def _settle(self, step: CommitBatch, mark: tuple[int, int] | None) -> Entries:
        for why, offsets in step.settled.items():
            if self._archived and why is not SettledAs.Archived:
                self._settled.remove(SettledAs.Archived, offsets)
            self._settled.add(why, offsets)
        entries: Entries = list(self._settled.take_changed_records())
        if mark is not None:
            key = records.mark_key(self._box, self._partition)
            entries.append((key, records.encode_mark(key, *mark)))
            self._mark = mark
        return entries

    def _note(self, packed: Iterable[record_batches.PartitionBatches], offsets: Iterable[list[int]]) -> Entries:
        entries: Entries = []
        for parcel, got in zip(packed, offsets, strict=True):
            for chunk, bits in records.split_into_chunks(got).items():
                key = records.produced_key(self._uid, self._partition, parcel.topic, parcel.partition, chunk)
                entries.append(self._merged(key, bits))
        return entries

    def _select(self, step: CommitBatch) -> Entries:
        chunks: Mapping[int, BitMap] = records.split_into_chunks(step.selected)
        return [self._merged(records.selected_key(self._uid, self._partition, n), bits) for n, bits in chunks.items()]

    def _merged(self, key: bytes, bits: BitMap) -> tuple[bytes, bytes]:
        whole = self._chunks.setdefault(key, BitMap())
        whole |= bits
        self._chunks[key] = whole
        return key, records.encode_chunk(key, whole)


async def check_mark(kafka: KafkaClient, box: str, partition: int, mark: tuple[int, int] | None) -> None:
    """A topic made anew starts at offset 0; the old ledger would call its letters settled."""
    if mark is None:
        return
    offset, timestamp = mark
    end = (await kafka.offsets_at(box, [partition]))[partition]
    found = await reads.read_timestamp(kafka, box, partition, offset) if offset < end else None
    if offset >= end or found not in (None, timestamp):
        raise BoxRecreated(
            f"{box}: partition {partition} is not the one its ledger speaks of; if that is right, annotate the queue"
            ' with deadletter.dev/reset-ledger: "true"'
        )


@asynccontextmanager
async def open_mover(
    kafka: KafkaClient, box: str, ledger: str, partition: int, uid: str, archived: bool, sightings: TimestampCache
) -> AsyncIterator[KafkaPartitionWriter]:
    """Producer first: it fences the one before and finishes its transaction. Then the ledger."""
    if not 0 <= partition < await kafka.partition_count(box):
        raise BoxRecreated(f"{box}: it has no partition {partition}")
    await topics.ensure_ledger(kafka, ledger, box)
    room = await TransactionalProducer.open(kafka, f"dlq.{box}.{partition}")
    try:
        mover = KafkaPartitionWriter(kafka, room, box, ledger, partition, uid)
        await mover.load(archived, sightings)
        yield mover
    finally:
        await room.close()
