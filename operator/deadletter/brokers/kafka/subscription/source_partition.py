"""One partition of the source: messages are claimed by offset, and settled by the group's offset and its metadata."""

import contextlib
from collections.abc import Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as driver
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.kafka import hanging_transactions
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.corrupt_batches import CorruptBatch
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.offsets import end_offsets, start_offsets
from deadletter.brokers.kafka.reads import to_stored_message
from deadletter.brokers.kafka.subscription import group_offsets
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.subscription.partition import AssignedPartition
from deadletter.brokers.kafka.subscription.progress import SourceProgress
from deadletter.brokers.kafka.subscription.settlement_writer import (
    PendingSettlement,
    SettlementWriter,
    pack_letters,
    target_topics,
)
from deadletter.brokers.lost_offsets import offsets_lost_error
from deadletter.brokers.types import Buried, Claim, Parked, SubscriptionSpec
from deadletter.core.letters import Message, Place

log = structlog.stdlib.get_logger("subscription")


class SourcePartition(AssignedPartition):
    """Claim and settle the messages of one source partition.

    Opened on assignment: first the producer, which fences the owner before, then the committed offset.
    """

    def __init__(
        self,
        kafka: KafkaClient,
        consumer: AIOKafkaConsumer,
        spec: SubscriptionSpec,
        tp: TopicPartition,
        count_deleted: Callable[[int], None],
        is_recreated: bool = False,
    ) -> None:
        super().__init__(kafka, consumer, spec, tp, f"dlq.{spec.source}.{spec.group}.{tp.partition}")
        self._count_deleted = count_deleted
        self._is_recreated = is_recreated  # the group's offset is of a log that was deleted
        self.progress = SourceProgress(0)
        self.settlement_writer = SettlementWriter(self)

    async def open(self) -> int:
        """Recover, and return the offset to read from."""
        await self.recover()
        self.position = self.progress.start
        if (start := await self._start_offset()) > self.position:
            self.skip_deleted(start, self.position)
        return self.position

    async def recover(self) -> None:
        """Fence writes that may still be under way, then read the committed progress."""
        producer, targets = await self._open_producer()
        await hanging_transactions.complete_hanging(self._kafka, producer, targets, self._spec.group, self.tp)
        offset, metadata = await self._read_or_commit_offset()
        progress = SourceProgress(offset, metadata)
        progress.keep_in_flight(self.progress)
        self.progress = progress
        self._claims = {offset: claim for offset, claim in self._claims.items() if not progress.is_finished(offset)}
        progress.finish(self._missing_offsets())

    async def _read_or_commit_offset(self) -> tuple[int, str]:
        """Return the group's offset and metadata; commit the start of a partition that is new to the group."""
        committed = (await group_offsets.read_committed_offsets(self._kafka, self._spec.group, [self.tp])).get(self.tp)
        end = (await end_offsets(self._kafka, self.tp.topic, [self.tp.partition]))[self.tp.partition]
        if committed is not None and committed.offset <= end and not self._is_recreated:
            return committed.offset, committed.metadata or ""
        if committed is None and not self._is_recreated:
            await self._check_offsets_not_lost()
        # A partition without an offset of the group was added, and one that ends before its offset was deleted and
        # created again: all of it is new. Commit at once: a restart before the first settlement might start elsewhere.
        start = await self._start_offset()
        await self._commit(start, "")
        self._is_recreated = False
        return start, ""

    async def _check_offsets_not_lost(self) -> None:
        """Raise GroupOffsetsLost if the group has no offset of any partition, so that this partition is not new."""
        if await group_offsets.has_lost_offsets(self._kafka, self._spec.source, self._spec.group):
            raise offsets_lost_error(self._spec.source, self._spec.group)

    async def _start_offset(self) -> int:
        return (await start_offsets(self._kafka, self.tp.topic, [self.tp.partition]))[self.tp.partition]

    def _missing_offsets(self) -> list[int]:
        """Return unfinished offsets that reading has passed without finding a message to claim."""
        return [one for one in self.progress.unfinished if one < self.position and one not in self._claims]

    def _advance_to(self, offset: int) -> None:
        """Move the position to the next message.

        Unfinished messages in the gap before it no longer exist; they would hold up the group's offset without end.
        """
        is_gap = self.position < offset and self.position <= self.progress.known
        self.position = offset
        if is_gap and (missing := self._missing_offsets()):
            self.progress.finish(missing)
            self.settlement_writer.write_attempts_soon()
            log.warning(
                "unfinished messages are no longer in the source; retention or compaction removed them",
                topic=self.tp.topic,
                partition=self.tp.partition,
                messages=len(missing),
            )

    def skip_deleted(self, start: int, position: int) -> None:
        """Continue at `start`, to which retention moved the log start past `position`; count what was not finished.

        The deleted log cannot be read, so offsets without a message that had not been passed yet count as well.
        """
        deleted = max(0, start - max(position, self.progress.highest + 1))
        self.position = start
        unfinished = self._missing_offsets()
        self.progress.finish(unfinished)
        self.progress.skip_to(start)
        deleted += len(unfinished)
        if deleted:
            self._count_deleted(deleted)
            self.settlement_writer.write_attempts_soon()
            log.warning(
                "messages deleted before they were read",
                topic=self.tp.topic,
                partition=self.tp.partition,
                messages=deleted,
                first_offset_left=start,
                remedy="raise the retention of the source, or repair what holds up the delivery",
            )

    async def skip_markers(self) -> None:
        """Commit that reading has passed offsets without a message, so that retention cannot be blamed for them."""
        with contextlib.suppress(driver.IllegalStateError):  # the partition was revoked
            position = await self._consumer.position(self.tp)
            if position > max(self.progress.highest + 1, self.position):
                self.progress.skip_to(position)
                self.settlement_writer.write_attempts_soon()

    def count_readable(self, limit: int) -> int:
        """Return how many of `limit` messages may be read now.

        The limit is the size of the commit metadata, which holds the unfinished messages of an earlier owner already.
        """
        left_over = max(0, self.progress.known + 1 - self.position)
        return limit if self.progress.has_metadata_space(limit) else min(limit, left_over)

    def claim(self, record: ConsumerRecord) -> Claim | None:
        """Claim a message; return None if it was finished before."""
        self._advance_to(record.offset)
        self.position = record.offset + 1
        attempts = self.progress.take(record.offset)
        if attempts is None:
            return None
        stored = to_stored_message(record)
        claim = Claim(stored.place, stored.message, attempts.count, attempts.first_failed_at)
        self._claims[record.offset] = claim
        return claim

    def claim_corrupt_batch(self, batch: CorruptBatch) -> Claim | None:
        """Claim the raw bytes of a corrupt batch as one message; return None if it was finished before."""
        self._advance_to(batch.first_offset)
        self.position = batch.end_offset
        attempts = self.progress.take(batch.first_offset)
        self.progress.skip_to(batch.end_offset)
        if attempts is None:
            return None
        place = Place(self.tp.topic, self.tp.partition, batch.first_offset)
        claim = Claim(place, Message(None, batch.content), undecodable_reason=batch.reason)
        self._claims[batch.first_offset] = claim
        return claim

    def record_attempt(self, claim: Claim, attempts: Attempts) -> None:
        """Record a failed attempt, which is written with the next commit."""
        self.progress.record_attempt(claim.place.offset, attempts)
        self.settlement_writer.write_attempts_soon()

    def is_settled(self, offset: int) -> bool:
        """True if the message is settled."""
        return self.progress.is_finished(offset)

    def may_be_delayed(self, pending: PendingSettlement) -> bool:
        """True for a letter, which needs a transaction; other settlements need only a plain commit."""
        return isinstance(pending.settlement, Buried | Parked)

    async def write(self, settlements: Sequence[PendingSettlement]) -> None:
        """Commit the group's offset; in one transaction with the letters if there are any."""
        offsets = {pending.offset for pending in settlements}
        if target_topics(settlements, self._spec):
            await self._write_in_transaction(settlements, offsets)
        else:
            await self._commit(*self.progress.snapshot(offsets))
        self.progress.finish(offsets)
        for offset in offsets:
            self._claims.pop(offset, None)

    async def _write_in_transaction(self, settlements: Sequence[PendingSettlement], offsets: set[int]) -> None:
        producer = await self._require_producer()
        packed = await pack_letters(self._kafka, producer, settlements, self._spec)
        offset, metadata = self.progress.snapshot(offsets)
        async with producer.transaction() as transaction:
            await transaction.send(packed)
            await transaction.commit_offsets(self._spec.group, {self.tp: OffsetAndMetadata(offset, metadata)})

    async def write_attempts(self) -> None:
        """Commit the group's offset with the changed attempts in its metadata."""
        await self._commit(*self.progress.snapshot())

    async def _commit(self, offset: int, metadata: str) -> None:
        with translated(f"{self._spec.group} on {self.tp.topic}"):
            await self._consumer.commit({self.tp: (offset, metadata)})
