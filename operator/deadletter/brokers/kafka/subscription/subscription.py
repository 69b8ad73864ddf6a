"""Where a courier works: one group consumer over source and retry box, and a partition's work per assignment."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from deadletter.brokers.errors import BoxMissing, BrokerError, Fenced, GroupOffsetsLost
from deadletter.brokers.kafka import topics
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.driver_internals import cancel_tasks
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.ledger import write_worker_status
from deadletter.brokers.kafka.subscription import membership
from deadletter.brokers.kafka.subscription.blocked import BlockedPartitions, read_lags
from deadletter.brokers.kafka.subscription.claim_buffer import ClaimBuffer, Partition
from deadletter.brokers.kafka.subscription.group import ensure_first_offsets
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Claim, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus

CLAIM_TIMEOUT_S = 1.0
REOPEN_INTERVAL_S = 1.0
JOIN_TIMEOUT_S = 90.0
METADATA_MAX_AGE_MS = 30_000  # until a new partition of the source is heard of
LAG_INTERVAL_S = 5.0  # seconds; who is paused reads nothing, and would not see the source grow


class KafkaSubscription(ConsumerRebalanceListener):  # type: ignore[misc]
    """See `base.Desk`."""

    def __init__(self, line: KafkaClient, spec: SubscriptionSpec) -> None:
        self._line, self._spec = line, spec
        self._consumer: AIOKafkaConsumer = None
        self._works: dict[TopicPartition, Partition] = {}
        self._openings: set[asyncio.Task[None]] = set()
        self._failure: BrokerError | None = None
        self._shut = BlockedPartitions()
        self._intake = ClaimBuffer(line, spec.group, self._works, self._shut, self._begin_anew)
        self._source_id = ""
        self._said = False
        self._closing = False
        self._joined = asyncio.Event()
        self._ends: dict[int, int] = {}
        self._shut_lags: dict[TopicPartition, int] = {}
        self._looking: asyncio.Task[None] | None = None
        self.lost = 0

    async def open(self) -> None:
        """Check the boxes, then join the group."""
        wanted = (self._spec.source, self._spec.dead, self._spec.retry)
        found = await self._line.partition_counts(wanted)
        for name in wanted:
            if name not in found:
                raise BoxMissing(f"{name}: it does not exist")
        await topics.ensure_ledger(self._line, self._spec.ledger, self._spec.dead)
        self._source_id = self._line.topic_id(self._spec.source)
        await ensure_first_offsets(self._line, self._spec)
        self._spec = replace(self._spec, has_started=True)
        await self._join()
        self._looking = asyncio.ensure_future(self._look())

    async def _join(self) -> None:
        self._joined.clear()
        self._consumer = await self._line.start_consumer(
            group_id=self._spec.group,
            max_poll_interval_ms=2**31 - 1,
            heartbeat_interval_ms=membership.HEARTBEAT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        self._consumer.subscribe([self._spec.source, self._spec.retry], listener=self)
        await self._settle_in()

    async def _settle_in(self) -> None:
        """The first assignment is here and its partitions are open: what is published from now on is ours."""
        with translated(self._spec.group):
            await asyncio.wait_for(self._joined.wait(), JOIN_TIMEOUT_S)
            if self._openings:
                await asyncio.wait(list(self._openings), timeout=JOIN_TIMEOUT_S)

    async def _join_anew(self) -> None:
        """A consumer with credentials of the past could not dial again, and would not say so."""
        await self._let_go()
        await self._consumer.stop()
        await self._join()

    async def close(self) -> None:
        """Write what is gathered, leave the group, take our word back."""
        self._closing = True
        if self._looking is not None:
            await cancel_tasks({self._looking})
        await self._let_go()
        if self._consumer is not None:
            await self._consumer.stop()
        if self._said:
            with contextlib.suppress(BrokerError):
                await write_worker_status(self._line, self._spec.ledger, self._spec.consumer, None)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Before the group forms anew: what is settled is written, what is in hand is no longer ours."""
        del revoked
        await self._let_go()

    async def _let_go(self) -> None:
        await cancel_tasks(self._openings)
        works = list(self._works.values())
        self._works.clear()
        self._intake.clear()
        self._shut.clear()
        await asyncio.gather(*(work.close(flush=True) for work in works), return_exceptions=True)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing is fetched before the partition's work is open."""
        for tp in assigned if not self._closing else ():
            self._start(tp)
        self._joined.set()

    def _start(self, tp: TopicPartition, past: SourcePartition | None = None) -> None:
        self._consumer.pause(tp)
        self._consumer.seek(tp, 0)  # a position of ours, so that the driver does not look for one
        task = asyncio.ensure_future(self._begin(tp, past))
        self._openings.add(task)
        task.add_done_callback(self._begun)

    def _begin_anew(self, tp: TopicPartition, past: SourcePartition) -> None:
        """All that we know and hold of a source is of a log that was deleted and made again."""
        del self._works[tp]
        self._start(tp, past)

    def _begun(self, task: "asyncio.Task[None]") -> None:
        self._openings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = translate(error, "a partition could not be opened")

    async def _begin(self, tp: TopicPartition, past: SourcePartition | None) -> None:
        if past is not None:
            await asyncio.shield(past.close(flush=False))
        while True:
            if await self._opened(tp, is_anew=past is not None):
                return
            await asyncio.sleep(REOPEN_INTERVAL_S)

    async def _opened(self, tp: TopicPartition, is_anew: bool) -> bool:
        """Is it open, or nothing that we could open? False: try again."""
        work = self._work(tp, is_anew)
        try:
            start = await work.open()
            with translated(tp.topic):
                self._consumer.seek(tp, start)
                self._consumer.resume(tp)
            self._works[tp] = work
            self._shut.unblock(tp)
        except BaseException as error:
            await asyncio.shield(work.close(flush=False))
            if isinstance(error, Fenced):
                return not membership.is_assigned(self._consumer, tp)
            if isinstance(error, GroupOffsetsLost):
                return await self._open_if_remade(tp, error)
            if isinstance(error, BrokerError) and error.is_transient:
                self._shut.block(tp, error)
                return False
            raise
        return True

    async def _open_if_remade(self, tp: TopicPartition, error: GroupOffsetsLost) -> bool:
        """Kafka deletes a group's offsets with their topic: all of a topic that was made again is new."""
        await self._line.partition_counts([self._spec.source])
        if self._line.topic_id(self._spec.source) == self._source_id:
            raise error
        return await self._opened(tp, is_anew=True)

    def _work(self, tp: TopicPartition, is_anew: bool) -> Partition:
        if tp.topic == self._spec.retry:
            return RetryPartition(self._line, self._consumer, self._spec, tp, self._count_lost)
        return SourcePartition(self._line, self._consumer, self._spec, tp, is_anew)

    def _count_lost(self, letters: int) -> None:
        self.lost += letters

    @property
    def lag(self) -> int:
        """Messages of the source not yet claimed, as far as known."""
        sources = ((tp, work) for tp, work in self._works.items() if isinstance(work, SourcePartition))
        shut = sum(self._shut_lags.get(tp, 0) for tp in self._shut.of_topic(self._spec.source))
        return shut + sum(max(0, self._end(tp) - work.progress.highest - 1) for tp, work in sources)

    @property
    def blocked_by(self) -> BrokerError | None:
        """What keeps a partition of ours shut."""
        return self._shut.first_error

    def _end(self, tp: TopicPartition) -> int:
        return max(self._consumer.highwater(tp) or 0, self._ends.get(tp.partition, 0))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LAG_INTERVAL_S)
            ours = [tp.partition for tp, work in self._works.items() if isinstance(work, SourcePartition)]
            with contextlib.suppress(BrokerError):  # the next claim or settlement says it
                self._ends = await self._line.offsets_at(self._spec.source, ours) if ours else {}
                self._shut_lags = await read_lags(self._line, self._spec.group, self._shut.of_topic(self._spec.source))

    @property
    def parked(self) -> int:
        """Letters waiting in our retry partitions."""
        return sum(work.parked for work in self._works.values() if isinstance(work, RetryPartition))

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due: int | None = None) -> list[Claim]:
        """Due letters first, then messages of the source; with none, what keeps a partition shut is raised."""
        deadline = time.monotonic() + CLAIM_TIMEOUT_S
        while True:
            if self._failure is not None:
                raise self._failure
            claims = await self._due(limit if due is None else min(due, limit), max_bytes)
            room = max_bytes - _size(claims)
            if len(claims) < limit and room > 0:
                try:
                    wait = 0 if claims else self._longest_wait(deadline)
                    await self._intake.fill(self._consumer, limit - len(claims), wait)
                except BrokerError:
                    if not claims:  # due letters are in hand by now and must not be forgotten
                        raise
                claims += self._intake.take(limit - len(claims), room)
            if claims:
                return claims
            if time.monotonic() >= deadline:
                return await self._nothing()

    async def _nothing(self) -> list[Claim]:
        """Nothing came, and it is asked why: what keeps a partition shut is raised."""
        if self.blocked_by is not None:
            raise self.blocked_by
        if not self._line.has_current_credentials(self._consumer):
            await self._join_anew()
        return []

    def _longest_wait(self, deadline: float) -> float:
        due = [when for work in self._works.values() if isinstance(work, RetryPartition) and (when := work.next_due())]
        until_due = min(due) / 1000 - time.time() if due else CLAIM_TIMEOUT_S
        return max(0.01, min(deadline - time.monotonic(), until_due, 0.2))

    async def _due(self, limit: int, max_bytes: int) -> list[Claim]:
        claims: list[Claim] = []
        for work in list(self._works.values()):
            if isinstance(work, RetryPartition) and len(claims) < limit:
                now, room = time.time_ns() // 1_000_000, max_bytes - _size(claims)
                try:
                    claims += await work.claim_due(now, limit - len(claims), room)
                except BrokerError:
                    if not claims:  # those of other partitions are in hand by now and must not be forgotten
                        raise
        return claims

    def _owner(self, claim: Claim) -> Partition | None:
        return self._works.get(TopicPartition(claim.place.box, claim.place.partition))

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Remember an inline failure."""
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        work = self._owner(claim)
        if work is not None:
            work.record_attempt(claim, Attempts(attempts, first_failed_at))

    def holds(self, claim: Claim) -> bool:
        """Is it still ours?"""
        work = self._owner(claim)
        return work is not None and work.is_held(claim)

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Returns when it is durable."""
        work = self._owner(claim)
        if work is None or not work.is_held(claim):
            raise Fenced(f"{claim.place.box}: the partition went to another courier")
        await work.committer.settle(claim, settlement)

    async def report_status(self, word: WorkerStatus) -> None:
        """Keep this word where the sweep reads it."""
        self._said = True
        await write_worker_status(self._line, self._spec.ledger, word.pod, word)


def _size(claims: Iterable[Claim]) -> int:
    return sum(claim.message.size for claim in claims)


@asynccontextmanager
async def open_subscription(line: KafkaClient, spec: SubscriptionSpec) -> AsyncIterator[KafkaSubscription]:
    """Join the group; leave it at the end."""
    desk = KafkaSubscription(line, spec)
    try:
        await desk.open()
        yield desk
    finally:
        await desk.close()
