"""One partition of the retry box: letters wait here for their time, settled by the ledger."""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import RecordsToDelete
from pyroaring import BitMap64

from deadletter.brokers.kafka import hanging_transactions, reads, record_batches
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger import ledger_partition, pack_ledger_records, read_ledger
from deadletter.brokers.kafka.subscription import letters, membership
from deadletter.brokers.kafka.subscription.committer import PartitionCommitter, PendingSettlement
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import Buried, Claim, Discarded, Parked, StoredMessage, SubscriptionSpec
from deadletter.core.ledger.records import Key
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import SettledAs

KEPT_BYTES = 16 << 20  # payloads held in all partitions of ours; the others are read when they are due
FETCH_BYTES = 1 << 18  # at once, of those that are not kept
TRIM_AFTER = 60.0
log = structlog.stdlib.get_logger("parking")


class RetryPartition:
    """Opened on assignment: producer, ledger, then letters from the lowest open one."""

    def __init__(
        self,
        kafka: KafkaClient,
        consumer: AIOKafkaConsumer,
        spec: SubscriptionSpec,
        tp: TopicPartition,
        count_lost: Callable[[int], None],
    ) -> None:
        self._kafka, self._consumer, self._spec, self.tp, self._count_lost = kafka, consumer, spec, tp, count_lost
        self._room: TransactionalProducer | None = None
        self._settled = Settlements(tp.topic, tp.partition)
        self._waiting: list[tuple[int, int, int]] = []  # due time, offset, size
        self._open = BitMap64()
        self.position = 0  # where reading goes on
        self._held: dict[int, Claim] = {}
        self._kept: dict[int, Message] = {}
        self._kept_bytes = 0
        self._most_kept = KEPT_BYTES // max(1, sum(one.topic == tp.topic for one in consumer.assignment()))
        self._trimmed = asyncio.get_running_loop().time()
        self.committer = PartitionCommitter(self)

    @property
    def parked(self) -> int:
        """Letters that wait for their time."""
        return len(self._waiting)

    async def open(self) -> int:
        """Where to read from."""
        await self.recover()
        start = (await self._kafka.offsets_at(self.tp.topic, [self.tp.partition], EARLIEST))[self.tp.partition]
        while start in self._settled:
            start += 1
        self.position = start
        return start

    async def recover(self) -> None:
        """What is durable, after everything of ours that was under way is fenced."""
        await self._close_room()
        await membership.confirm_assignment(self._consumer, self.tp)
        self._room = await TransactionalProducer.open(self._kafka, f"dlq.{self.tp.topic}.{self.tp.partition}")
        ledger = TopicPartition(self._spec.ledger, ledger_partition(self.tp.partition))
        await self._kafka.partition_counts([ledger.topic])
        places = await hanging_transactions.default_targets(self._kafka, self._spec, self.tp.partition)
        await hanging_transactions.complete_hanging(self._kafka, self._room, [*places, ledger])
        await hanging_transactions.complete_hanging_in_ledger(self._kafka, self._room, ledger)
        self._settled = await self._read_settled()
        for offset in [offset for offset in self._held if offset in self._settled]:
            self._let_go_of(offset)

    async def _read_settled(self) -> Settlements:
        kept = await read_ledger(self._kafka, self._spec.ledger, self._concerns, [ledger_partition(self.tp.partition)])
        settled = Settlements(self.tp.topic, self.tp.partition)
        with translated(self._spec.ledger):
            for key, (_, value) in kept.items():
                settled.load(key, value)
        return settled

    @property
    def is_assigned(self) -> bool:
        """Is it assigned to us?"""
        return membership.is_assigned(self._consumer, self.tp)

    def _concerns(self, key: Key) -> bool:
        return (key.kind, key.subject, key.partition) == ("settled", self.tp.topic, self.tp.partition)

    def add(self, record: ConsumerRecord) -> None:
        """A letter was parked here, unless it is settled already."""
        self.position = record.offset + 1
        if record.offset in self._settled or record.offset in self._open:
            return
        message = reads.to_stored_message(record).message
        self._open.add(record.offset)
        heapq.heappush(self._waiting, (letters.due_at(message), record.offset, message.size))
        if self._kept_bytes + message.size <= self._most_kept:
            self._kept[record.offset] = message
            self._kept_bytes += message.size

    def next_due(self) -> int | None:
        """When the next letter is due."""
        return self._waiting[0][0] if self._waiting else None

    async def claim_due(self, now: int, limit: int, max_bytes: int) -> list[Claim]:
        """Letters whose time has come; the last of them may reach over `max_bytes`."""
        taken: dict[int, int] = {}
        while self._waiting and self._waiting[0][0] <= now and len(taken) < limit and max_bytes > 0:
            _, offset, size = heapq.heappop(self._waiting)
            if offset in self._settled:  # by one that had the partition a moment longer than it should
                self._let_go_of(offset)
            else:
                taken[offset] = size
                max_bytes -= size
        try:
            found = await self._messages(taken)
        except BaseException:
            for offset, size in taken.items():
                heapq.heappush(self._waiting, (0, offset, size))
            raise
        claims = [letters.parked_claim(one) for one in found]
        self._held.update((claim.place.offset, claim) for claim in claims)
        return claims

    async def _messages(self, sizes: Mapping[int, int]) -> list[StoredMessage]:
        """The letters at these offsets, except those that the broker has deleted."""
        found = {offset: self._kept[offset] for offset in sizes if offset in self._kept}
        missing = {offset: size for offset, size in sizes.items() if offset not in found}
        if missing:
            found |= await self._fetched(missing)
            await self._give_up(missing.keys() - found.keys())
        for offset in found:
            self._drop(offset)
        return [StoredMessage(Place(self.tp.topic, self.tp.partition, o), found[o]) for o in sizes if o in found]

    async def _give_up(self, gone: Collection[int]) -> None:
        """Release letters that are no longer in the topic, and count those that were not settled as lost.

        A courier that took over the partition may have settled and trimmed some: only the ledger knows.
        """
        settled = await self._read_settled() if gone else ()
        lost = [offset for offset in gone if offset not in settled and offset not in self._settled]
        for offset in gone:
            self._let_go_of(offset)
        if lost:
            self._count_lost(len(lost))
            remedy = "look for who deletes its records: retention.bytes, cleanup.policy, delete-records"
            where = {"topic": self.tp.topic, "partition": self.tp.partition, "first": min(lost), "last": max(lost)}
            log.error("parked letters lost", letters=len(lost), **where, remedy=remedy)

    async def _fetched(self, sizes: Mapping[int, int]) -> dict[int, Message]:
        """Read from the box; what lies between two of them is read along where that costs no more than a fetch."""
        found: dict[int, Message] = {}
        apart = 2 + FETCH_BYTES * len(sizes) // max(1, sum(sizes.values()))  # a marker may lie between neighbours
        consumer = await self._kafka.start_consumer(max_partition_fetch_bytes=FETCH_BYTES)
        try:
            for span in _spans(sorted(sizes), apart):
                async for records in reads.read_records(consumer, {self.tp: span}):
                    found |= {one.offset: reads.to_stored_message(one).message for one in records[self.tp] if one.offset in sizes}
        finally:
            await consumer.stop()
        return found

    def record_attempt(self, claim: Claim, attempt: Attempts) -> None:
        """A parked letter carries its attempts itself; they are written when it is parked or buried again."""

    def is_settled(self, offset: int) -> bool:
        """Is it in the ledger?"""
        return offset in self._settled

    def is_held(self, claim: Claim) -> bool:
        """Is this very claim not settled?"""
        return self._held.get(claim.place.offset) is claim

    def may_be_delayed(self, verdict: PendingSettlement) -> bool:
        """Never: here a delivered one needs the ledger, and so a transaction, as well."""
        del verdict
        return False

    async def write(self, verdicts: Sequence[PendingSettlement]) -> None:
        """Letters and settlements in one transaction."""
        if self._room is None:
            await self.recover()
        assert self._room is not None  # noqa: S101  (recover opened it, or raised)
        names = letters.targets_of(verdicts, self._spec)
        counts = {name: target.partitions for name, target in (await self._room.topic_limits.look_up(names)).items()}
        packed = await record_batches.pack_publications(letters.publications(verdicts, self._spec, counts), self._room.topic_limits)
        await hanging_transactions.complete_hanging(self._kafka, self._room, (parcel.topic_partition for parcel in packed))
        for verdict in verdicts:
            self._settled.add(_why(verdict), [verdict.offset])
        packed.append(
            await pack_ledger_records(
                self._spec.ledger, self.tp.partition, self._settled.take_changed_records(), self._room.topic_limits
            )
        )
        async with self._room.transaction() as transaction:
            await transaction.send(packed)
        for verdict in verdicts:
            self._let_go_of(verdict.offset)
        await self._trim()

    def _let_go_of(self, offset: int) -> None:
        self._held.pop(offset, None)
        self._open.discard(offset)
        self._drop(offset)

    def _drop(self, offset: int) -> None:
        message = self._kept.pop(offset, None)
        self._kept_bytes -= message.size if message is not None else 0

    async def write_attempts(self) -> None:
        """Nothing to keep."""

    async def _trim(self) -> None:
        """Delete what lies below the lowest open letter; it is settled for ever."""
        now = asyncio.get_running_loop().time()
        if now - self._trimmed < TRIM_AFTER:
            return
        self._trimmed = now
        admin = await self._kafka.admin_client()
        lowest = self._open.min() if self._open else self.position
        with translated(self.tp.topic):
            await admin.delete_records({self.tp: RecordsToDelete(lowest)})

    async def _close_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            await room.close()

    async def close(self, flush: bool) -> None:
        """Write what is gathered and let go."""
        await self.committer.close(flush)
        await self._close_room()


def _spans(offsets: Sequence[int], apart: int) -> Iterator[tuple[int, int]]:
    """First and end of each run in which no two neighbours are further apart than that."""
    first = last = offsets[0]
    for offset in offsets:
        if offset - last > apart:
            yield first, last + 1
            first = offset
        last = offset
    yield first, last + 1


def _why(verdict: PendingSettlement) -> SettledAs:
    match verdict.settlement:
        case Buried():
            return SettledAs.Buried
        case Parked():
            return SettledAs.Superseded
        case Discarded():
            return SettledAs.Discarded
        case _:
            return SettledAs.Delivered
