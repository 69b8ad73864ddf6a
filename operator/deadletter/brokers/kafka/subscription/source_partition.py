"""One partition of the source: taken by offset, settled by the group's offset and its metadata."""

from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.group_offsets import offsets_lost
from deadletter.brokers.kafka import hanging_transactions, record_batches
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.corrupt_batches import CorruptBatch
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.reads import to_stored_message
from deadletter.brokers.kafka.subscription import group, letters, membership
from deadletter.brokers.kafka.subscription.committer import PartitionCommitter, PendingSettlement
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.subscription.progress import SourceProgress
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import Buried, Claim, Parked, SubscriptionSpec
from deadletter.core.letters import Message, Place

log = structlog.stdlib.get_logger("sources")


class SourcePartition:
    """Opened on assignment: producer first, which fences the owner before us, then the committed offset."""

    def __init__(
        self, line: KafkaClient, consumer: AIOKafkaConsumer, spec: SubscriptionSpec, tp: TopicPartition, is_anew: bool = False
    ) -> None:
        self._line, self._consumer, self._spec, self.tp = line, consumer, spec, tp
        self._is_anew = is_anew  # the group's offset is of a log that is gone
        self._room: TransactionalProducer | None = None
        self.progress = SourceProgress(0)
        self.position = 0  # where reading goes on
        self._held: dict[int, Claim] = {}
        self.committer = PartitionCommitter(self)

    async def open(self) -> int:
        """Where to read from."""
        await self.recover()
        self.position = self.progress.start
        self._go_on_at(max(self.position, await self._first()))
        return self.position

    async def recover(self) -> None:
        """What is durable, after everything of ours that was under way is fenced."""
        await self._close_room()
        await membership.confirm_assignment(self._consumer, self.tp)
        self._room = await TransactionalProducer.open(self._line, f"dlq.{self._spec.source}.{self._spec.group}.{self.tp.partition}")
        places = await hanging_transactions.default_targets(self._line, self._spec, self.tp.partition)
        await hanging_transactions.complete_hanging(self._line, self._room, places, self._spec.group, self.tp)
        offset, metadata = await self._committed()
        fresh = SourceProgress(offset, metadata)
        fresh.keep_in_flight(self.progress)
        self.progress = fresh
        self._held = {offset: claim for offset, claim in self._held.items() if not fresh.is_finished(offset)}
        fresh.finish(self._gone())

    async def _committed(self) -> tuple[int, str]:
        committed = (await group.read_committed_offsets(self._line, self._spec.group, [self.tp])).get(self.tp)
        end = (await self._line.offsets_at(self.tp.topic, [self.tp.partition]))[self.tp.partition]
        if committed is not None and committed.offset <= end and not self._is_anew:
            return committed.offset, committed.metadata or ""
        if committed is None and not self._is_anew:
            await self._check_others()
        # A partition that the group has no offset of was added, and one that ends before it was deleted and made again:
        # all of it is new. Said at once: else a restart before the first settlement might begin elsewhere.
        start = await self._first()
        await self._commit(start, "")
        self._is_anew = False
        return start, ""

    async def _check_others(self) -> None:
        """Raise GroupOffsetsLost if the group has no offset of any partition: then this one is not a new one."""
        if await group.has_lost_offsets(self._line, self._spec.source, self._spec.group):
            raise offsets_lost(self._spec.source, self._spec.group)

    async def _first(self) -> int:
        return (await self._line.offsets_at(self.tp.topic, [self.tp.partition], EARLIEST))[self.tp.partition]

    def _gone(self) -> list[int]:
        """What was unfinished when we came, was not there when reading passed it, and so is in nobody's hands."""
        return [one for one in self.progress.unfinished if one < self.position and one not in self._held]

    def _go_on_at(self, offset: int) -> None:
        """Nothing lies before this offset any more: unfinished messages that did would hold up the group for ever."""
        is_gap = self.position < offset and self.position <= self.progress.known
        self.position = offset
        if is_gap and (gone := self._gone()):
            self.progress.finish(gone)
            self.committer.schedule_attempts()
            log.warning(
                "unfinished messages are no longer in the source: retention or compaction took them",
                topic=self.tp.topic,
                partition=self.tp.partition,
                messages=len(gone),
            )

    @property
    def is_assigned(self) -> bool:
        """Is it assigned to us?"""
        return membership.is_assigned(self._consumer, self.tp)

    def count_readable(self, limit: int) -> int:
        """How many of `limit` may be read now; what the one before us left unfinished takes no more room."""
        left_over = max(0, self.progress.known + 1 - self.position)
        return limit if self.progress.has_metadata_space(limit) else min(limit, left_over)

    def claim(self, record: ConsumerRecord) -> Claim | None:
        """A claim, unless the message was finished before."""
        self._go_on_at(record.offset)
        self.position = record.offset + 1
        attempt = self.progress.take(record.offset)
        if attempt is None:
            return None
        one = to_stored_message(record)
        claim = self._held[record.offset] = Claim(one.place, one.message, attempt.count, attempt.first_failed_at)
        return claim

    def claim_corrupt_batch(self, batch: CorruptBatch) -> Claim | None:
        """All that is left of a batch as one claim, unless it was finished before."""
        self._go_on_at(batch.first_offset)
        self.position = batch.end_offset
        attempt = self.progress.take(batch.first_offset)
        self.progress.skip_to(batch.end_offset)
        if attempt is None:
            return None
        place = Place(self.tp.topic, self.tp.partition, batch.first_offset)
        claim = self._held[batch.first_offset] = Claim(place, Message(None, batch.content), unreadable=batch.reason)
        return claim

    def record_attempt(self, claim: Claim, attempt: Attempts) -> None:
        """It failed once more; kept with the next commit."""
        self.progress.record_attempt(claim.place.offset, attempt)
        self.committer.schedule_attempts()

    def is_settled(self, offset: int) -> bool:
        """Is it finished?"""
        return self.progress.is_finished(offset)

    def is_held(self, claim: Claim) -> bool:
        """Is this very claim not settled? One of an earlier assignment is not ours, even if we took it again."""
        return self._held.get(claim.place.offset) is claim

    def may_be_delayed(self, verdict: PendingSettlement) -> bool:
        """A letter needs a transaction, anything else only the group's offset."""
        return isinstance(verdict.settlement, Buried | Parked)

    async def write(self, verdicts: Sequence[PendingSettlement]) -> None:
        """Plainly when nothing was buried or parked, else in one transaction with the letters."""
        offsets = {verdict.offset for verdict in verdicts}
        names = letters.targets_of(verdicts, self._spec)
        if not names:
            await self._commit(*self.progress.snapshot(offsets))
        else:
            await self._write_with(names, verdicts, offsets)
        self.progress.finish(offsets)
        for offset in offsets:
            self._held.pop(offset, None)

    async def _write_with(self, names: Sequence[str], verdicts: Sequence[PendingSettlement], offsets: set[int]) -> None:
        if self._room is None:
            await self.recover()
        assert self._room is not None  # noqa: S101  (recover opened it, or raised)
        counts = {name: target.partitions for name, target in (await self._room.topic_limits.look_up(names)).items()}
        packed = await record_batches.pack_publications(letters.publications(verdicts, self._spec, counts), self._room.topic_limits)
        await hanging_transactions.complete_hanging(self._line, self._room, (parcel.topic_partition for parcel in packed))
        offset, metadata = self.progress.snapshot(offsets)
        async with self._room.transaction() as transaction:
            await transaction.send(packed)
            await transaction.commit_offsets(self._spec.group, {self.tp: OffsetAndMetadata(offset, metadata)})

    async def write_attempts(self) -> None:
        """Keep the attempts."""
        await self._commit(*self.progress.snapshot())

    async def _commit(self, offset: int, metadata: str) -> None:
        with translated(f"{self._spec.group} on {self.tp.topic}"):
            await self._consumer.commit({self.tp: (offset, metadata)})

    async def _close_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            await room.close()

    async def close(self, flush: bool) -> None:
        """Write what is gathered and let go."""
        await self.committer.close(flush)
        await self._close_room()
