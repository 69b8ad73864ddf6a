"""One partition of the retry topic: letters wait here until they are due, and are settled in the ledger."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import RecordsToDelete
from pyroaring import BitMap64

from deadletter.brokers.errors import Fenced
from deadletter.brokers.kafka import hanging_transactions, reads
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger import ledger_partition, pack_ledger_records, read_ledger
from deadletter.brokers.kafka.offsets import start_offsets
from deadletter.brokers.kafka.subscription.group_offsets import confirm_assignment
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.subscription.partition import AssignedPartition
from deadletter.brokers.kafka.subscription.settlement_writer import PendingSettlement, SettlementWriter, pack_letters
from deadletter.brokers.retry_headers import read_due_time, to_claim
from deadletter.brokers.types import Buried, Claim, Discarded, Parked, Settlement, StoredMessage, SubscriptionSpec
from deadletter.core.ledger.records import Key
from deadletter.core.ledger.settlements import Records, Settlements
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import SettledAs

MAX_CACHED_BYTES = 16 << 20  # payloads of all assigned partitions; others are read again when they are due
FETCH_BYTES = 1 << 18  # of one fetch of payloads that are not cached
TRIM_INTERVAL_S = 60.0
START_DURABLE_AFTER_S = 120.0  # a broker stores the start of its logs every 60 s; if killed before, it goes back
MAX_TOMBSTONES = 500  # in one transaction
log = structlog.stdlib.get_logger("subscription")


class PayloadCache:
    """The payloads of waiting letters, as many as fit into a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: dict[int, Message] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, offset: int) -> Message | None:
        """Return the payload at this offset; None if it is not cached."""
        return self._messages.get(offset)

    def add(self, offset: int, message: Message) -> None:
        """Cache a payload if there is space for it."""
        if self.bytes + message.size <= self._max_bytes:
            self._messages[offset] = message
            self.bytes += message.size

    def remove(self, offset: int) -> None:
        """Remove a payload if it is cached."""
        message = self._messages.pop(offset, None)
        self.bytes -= message.size if message is not None else 0


class RetryPartition(AssignedPartition):
    """Hand out parked letters when they are due, and settle them in the ledger.

    Opened on assignment: first the producer, then the ledger, then the letters from the lowest unsettled offset.
    """

    def __init__(
        self,
        kafka: KafkaClient,
        consumer: AIOKafkaConsumer,
        spec: SubscriptionSpec,
        tp: TopicPartition,
        count_lost: Callable[[int], None],
    ) -> None:
        super().__init__(kafka, consumer, spec, tp, f"dlq.{tp.topic}.{tp.partition}")
        self._count_lost = count_lost
        self._settled = Settlements(tp.topic, tp.partition)
        self._schedule: list[tuple[int, int, int]] = []  # a heap of due time, offset, size
        self._open = BitMap64()  # read and not settled
        self._starts = deque[tuple[float, int]]()  # where the topic started, and when that was seen
        self._obsolete_records: Records = []  # tombstones of chunks that are no longer in the topic
        partitions = sum(one.topic == tp.topic for one in consumer.assignment())
        self._payloads = PayloadCache(MAX_CACHED_BYTES // max(1, partitions))
        self._trimmed_at = asyncio.get_running_loop().time()
        self.settlement_writer = SettlementWriter(self)

    @property
    def parked(self) -> int:
        """Return the number of letters that wait until they are due."""
        return len(self._schedule)

    async def open(self) -> int:
        """Recover, and return the offset to read from."""
        await self.recover()
        start = (await start_offsets(self._kafka, self.tp.topic, [self.tp.partition]))[self.tp.partition]
        self._starts.append((asyncio.get_running_loop().time(), start))
        while start in self._settled:
            start += 1
        self.position = start
        return start

    async def recover(self) -> None:
        """Fence writes that may still be under way, then read what is settled from the ledger."""
        producer, targets = await self._open_producer()
        ledger = TopicPartition(self._spec.ledger, ledger_partition(self.tp.partition))
        await self._kafka.partition_counts([ledger.topic])
        await hanging_transactions.complete_hanging(self._kafka, producer, [*targets, ledger])
        await hanging_transactions.complete_hanging_in_ledger(self._kafka, producer, ledger)
        self._settled = await self._read_settled()
        for offset in [offset for offset in self._claims if offset in self._settled]:
            self._release(offset)

    async def _read_settled(self) -> Settlements:
        partition = ledger_partition(self.tp.partition)
        entries = await read_ledger(self._kafka, self._spec.ledger, self._is_relevant, [partition])
        settled = Settlements(self.tp.topic, self.tp.partition)
        with translated(self._spec.ledger):
            for key, (_, value) in entries.items():
                settled.load(key, value)
        return settled

    def _is_relevant(self, key: Key) -> bool:
        return (key.kind, key.subject, key.partition) == ("settled", self.tp.topic, self.tp.partition)

    def add(self, record: ConsumerRecord) -> None:
        """Schedule a letter unless it is settled or scheduled already."""
        self.position = record.offset + 1
        if record.offset in self._settled or record.offset in self._open:
            return
        message = reads.to_stored_message(record).message
        self._open.add(record.offset)
        heapq.heappush(self._schedule, (read_due_time(message), record.offset, message.size))
        self._payloads.add(record.offset, message)

    def next_due(self) -> int | None:
        """Return when the next letter is due, in ms; None if none waits."""
        return self._schedule[0][0] if self._schedule else None

    async def claim_due(self, now: int, limit: int, max_bytes: int) -> list[Claim]:
        """Claim letters that are due; the last of them may exceed `max_bytes`."""
        due: dict[int, int] = {}
        while self._schedule and self._schedule[0][0] <= now and len(due) < limit and max_bytes > 0:
            _, offset, size = heapq.heappop(self._schedule)
            if offset in self._settled:  # by a courier that had the partition a moment longer than it should
                self._release(offset)
            else:
                due[offset] = size
                max_bytes -= size
        try:
            letters = await self._read_letters(due)
        except BaseException:
            for offset, size in due.items():
                heapq.heappush(self._schedule, (0, offset, size))
            raise
        claims = [to_claim(letter.place, letter.message) for letter in letters]
        self._claims.update((claim.place.offset, claim) for claim in claims)
        return claims

    async def _read_letters(self, sizes: Mapping[int, int]) -> list[StoredMessage]:
        """Return the letters at these offsets, except those that the broker has deleted."""
        found = {offset: message for offset in sizes if (message := self._payloads.get(offset)) is not None}
        uncached = {offset: size for offset, size in sizes.items() if offset not in found}
        if uncached:
            found |= await self._fetch_letters(uncached)
            await self._release_missing(uncached.keys() - found.keys())
        for offset in found:
            self._payloads.remove(offset)
        return [StoredMessage(Place(self.tp.topic, self.tp.partition, o), found[o]) for o in sizes if o in found]

    async def _release_missing(self, missing: Collection[int]) -> None:
        """Release letters that are no longer in the topic, and count those that were not settled as lost.

        A courier that took over the partition may have settled and trimmed some. The ledger knows them, unless their
        chunk was removed from it since: so none counts as lost if the partition is assigned to another courier.
        """
        settled = await self._read_settled() if missing else ()
        lost = [offset for offset in missing if offset not in settled and offset not in self._settled]
        is_ours = bool(lost) and await self._is_still_ours()
        for offset in missing:
            self._release(offset)
        if is_ours:
            self._count_lost(len(lost))
            log.error(
                "parked letters lost",
                letters=len(lost),
                topic=self.tp.topic,
                partition=self.tp.partition,
                first_offset=min(lost),
                last_offset=max(lost),
                remedy="find what deletes records of the topic: retention.bytes, cleanup.policy or DeleteRecords",
            )

    async def _is_still_ours(self) -> bool:
        try:
            await confirm_assignment(self._consumer, self.tp)
        except Fenced:
            return False
        return True

    async def _fetch_letters(self, sizes: Mapping[int, int]) -> dict[int, Message]:
        """Read letters from the topic; read through the gap between two letters if that costs no more than a fetch."""
        found: dict[int, Message] = {}
        max_gap = 2 + FETCH_BYTES * len(sizes) // max(1, sum(sizes.values()))  # neighbours may have a marker between
        consumer = await self._kafka.start_consumer(max_partition_fetch_bytes=FETCH_BYTES)
        try:
            for span in _group_into_spans(sorted(sizes), max_gap):
                async for records in reads.read_records(consumer, {self.tp: span}):
                    wanted = (record for record in records[self.tp] if record.offset in sizes)
                    found |= {record.offset: reads.to_stored_message(record).message for record in wanted}
        finally:
            await consumer.stop()
        return found

    def record_attempt(self, claim: Claim, attempts: Attempts) -> None:
        """Do nothing: the attempts of a parked letter are written into it when it is parked or buried again."""

    def is_settled(self, offset: int) -> bool:
        """True if the letter is settled in the ledger."""
        return offset in self._settled

    def may_be_delayed(self, pending: PendingSettlement) -> bool:
        """Return False: every settlement of a parked letter is written to the ledger, in a transaction."""
        del pending
        return False

    async def write(self, settlements: Sequence[PendingSettlement]) -> None:
        """Write letters and settlements in one transaction."""
        producer = await self._require_producer()
        packed = await pack_letters(self._kafka, producer, settlements, self._spec)
        for pending in settlements:
            self._settled.add(_settled_as(pending.settlement), [pending.offset])
        self._drop_trimmed()
        tombstones = self._obsolete_records[:MAX_TOMBSTONES]
        records = [*tombstones, *self._settled.take_changed_records()]
        packed.append(await pack_ledger_records(self._spec.ledger, self.tp.partition, records, producer.topic_limits))
        async with producer.transaction() as transaction:
            await transaction.send(packed)
        del self._obsolete_records[: len(tombstones)]
        for pending in settlements:
            self._release(pending.offset)
        await self._trim()

    def _release(self, offset: int) -> None:
        self._claims.pop(offset, None)
        self._open.discard(offset)
        self._payloads.remove(offset)

    async def write_attempts(self) -> None:
        """Do nothing, see `record_attempt`."""

    async def _trim(self) -> None:
        """Delete the records below the lowest unsettled letter."""
        now = asyncio.get_running_loop().time()
        if now - self._trimmed_at < TRIM_INTERVAL_S:
            return
        self._trimmed_at = now
        admin = await self._kafka.admin_client()
        lowest = self._open.min() if self._open else self.position
        with translated(self.tp.topic):
            await admin.delete_records({self.tp: RecordsToDelete(lowest)})
        self._starts.append((now, lowest))

    def _drop_trimmed(self) -> None:
        """Forget chunks of letters that cannot return to the topic; transactions remove them from the ledger."""
        latest = asyncio.get_running_loop().time() - START_DURABLE_AFTER_S
        while self._starts and self._starts[0][0] <= latest:
            _, start = self._starts.popleft()
            known = dict(self._obsolete_records)
            self._obsolete_records += [one for one in self._settled.drop_below(start) if one[0] not in known]


def _group_into_spans(offsets: Sequence[int], max_gap: int) -> Iterator[tuple[int, int]]:
    """Yield first offset and end of each run in which no two neighbours are further apart than `max_gap`."""
    first = last = offsets[0]
    for offset in offsets:
        if offset - last > max_gap:
            yield first, last + 1
            first = offset
        last = offset
    yield first, last + 1


def _settled_as(settlement: Settlement) -> SettledAs:
    match settlement:
        case Buried():
            return SettledAs.Buried
        case Parked():
            return SettledAs.Superseded
        case Discarded():
            return SettledAs.Discarded
        case _:
            return SettledAs.Delivered
