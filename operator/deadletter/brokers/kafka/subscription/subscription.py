"""The subscription of a courier: one consumer of the group that reads the source and the retry topic."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.errors import BoxMissing, BrokerError, Fenced
from deadletter.brokers.kafka import ledger_topic
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.driver_shutdown import cancel_tasks
from deadletter.brokers.kafka.ledger import write_worker_status
from deadletter.brokers.kafka.offsets import end_offsets
from deadletter.brokers.kafka.subscription.assignment import PartitionAssignment
from deadletter.brokers.kafka.subscription.claim_buffer import Partition
from deadletter.brokers.kafka.subscription.group_offsets import HEARTBEAT_MS, ensure_first_offsets, read_lags
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Claim, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import now_ms

CLAIM_TIMEOUT_S = 1.0
MIN_POLL_S, MAX_POLL_S = 0.01, 0.2
METADATA_MAX_AGE_MS = 30_000  # the delay until a new partition of the source is noticed
LAG_INTERVAL_S = 5.0  # a paused consumer reads nothing, and would not notice that the source grows
MAX_POLL_INTERVAL_MS = 2**31 - 1


class KafkaSubscription:
    """Implement `Subscription`; claims come from the assigned partitions, which also settle them."""

    def __init__(self, kafka: KafkaClient, spec: SubscriptionSpec) -> None:
        self._kafka, self._spec = kafka, spec
        self._assignment = PartitionAssignment(kafka, spec)
        self._consumer: AIOKafkaConsumer = None
        self._has_reported = False
        self._end_offsets: dict[int, int] = {}
        self._blocked_lags: dict[TopicPartition, int] = {}
        self._lag_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Join the group and start to track its lag."""
        await self._join()
        self._lag_task = asyncio.ensure_future(self._track_lag())

    async def _join(self) -> None:
        self._consumer = await self._kafka.start_consumer(
            group_id=self._spec.group,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            auto_offset_reset="none",  # the claim buffer counts what a reset skips
        )
        await self._assignment.join(self._consumer)

    async def _join_again(self) -> None:
        """Join with new credentials: a consumer with old ones cannot reconnect, and does not report that."""
        await self._assignment.release()
        await self._consumer.stop()
        await self._join()

    async def close(self) -> None:
        """Write pending settlements, leave the group and delete the status of this worker."""
        if self._lag_task is not None:
            await cancel_tasks({self._lag_task})
        await self._assignment.close()
        if self._consumer is not None:
            await self._consumer.stop()
        if self._has_reported:
            with contextlib.suppress(BrokerError):
                await write_worker_status(self._kafka, self._spec.ledger, self._spec.consumer, None)

    @property
    def lag(self) -> int:
        """Return the number of source messages that are not claimed yet, as far as known."""
        blocked = sum(self._blocked_lags.get(tp, 0) for tp in self._assignment.blocked.of_topic(self._spec.source))
        return blocked + sum(
            max(0, self._end_offset(tp) - partition.progress.highest - 1) for tp, partition in self._source_partitions()
        )

    def _end_offset(self, tp: TopicPartition) -> int:
        return max(self._consumer.highwater(tp) or 0, self._end_offsets.get(tp.partition, 0))

    async def _track_lag(self) -> None:
        while True:
            await asyncio.sleep(LAG_INTERVAL_S)
            source, numbers = self._spec.source, [tp.partition for tp, _ in self._source_partitions()]
            with contextlib.suppress(BrokerError):  # the next claim or settlement reports it
                self._end_offsets = await end_offsets(self._kafka, source, numbers) if numbers else {}
                blocked = self._assignment.blocked.of_topic(source)
                self._blocked_lags = await read_lags(self._kafka, self._spec.group, blocked)
            for _, partition in self._source_partitions():
                await partition.skip_markers()

    @property
    def blocked_by(self) -> BrokerError | None:
        """Return the error that blocks a partition, if any."""
        return self._assignment.blocked.first_error

    @property
    def lost_letters(self) -> int:
        """Return the number of parked letters that were missing from the retry topic when due."""
        return self._assignment.lost_letters

    @property
    def deleted_messages(self) -> int:
        """Return the number of source messages that retention deleted before they were read."""
        return self._assignment.deleted_messages

    @property
    def parked_letters(self) -> int:
        """Return the number of letters that wait in the assigned retry partitions."""
        return sum(partition.parked for partition in self._retry_partitions())

    def _source_partitions(self) -> list[tuple[TopicPartition, SourcePartition]]:
        return [(tp, one) for tp, one in self._assignment.partitions.items() if isinstance(one, SourcePartition)]

    def _retry_partitions(self) -> list[RetryPartition]:
        return [one for one in self._assignment.partitions.values() if isinstance(one, RetryPartition)]

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due_limit: int | None = None) -> list[Claim]:
        """Claim due letters, then source messages; if there are none, raise the error that blocks a partition."""
        deadline = time.monotonic() + CLAIM_TIMEOUT_S
        buffer = self._assignment.buffer
        while True:
            if self._assignment.failure is not None:
                raise self._assignment.failure
            claims = await self._claim_due(limit if due_limit is None else min(due_limit, limit), max_bytes)
            left_bytes = max_bytes - _size(claims)
            if len(claims) < limit and left_bytes > 0:
                try:
                    wait = 0 if claims else self._longest_wait(deadline)
                    await buffer.fill(self._consumer, limit - len(claims), wait)
                except BrokerError:
                    if not claims:  # otherwise the due letters, which are claimed by now, would be forgotten
                        raise
                claims += buffer.take(limit - len(claims), left_bytes)
            if claims:
                return claims
            if time.monotonic() >= deadline:
                await self._check_connection()
                return []

    async def _check_connection(self) -> None:
        """Raise the error that blocks a partition; join again if the credentials have changed."""
        if self.blocked_by is not None:
            raise self.blocked_by
        if not self._kafka.has_current_credentials(self._consumer):
            await self._join_again()

    def _longest_wait(self, deadline: float) -> float:
        due = [due_at for partition in self._retry_partitions() if (due_at := partition.next_due())]
        until_due = (min(due) - now_ms()) / 1000 if due else CLAIM_TIMEOUT_S
        return max(MIN_POLL_S, min(deadline - time.monotonic(), until_due, MAX_POLL_S))

    async def _claim_due(self, limit: int, max_bytes: int) -> list[Claim]:
        claims: list[Claim] = []
        for partition in self._retry_partitions():
            if len(claims) < limit:
                try:
                    claims += await partition.claim_due(now_ms(), limit - len(claims), max_bytes - _size(claims))
                except BrokerError:
                    if not claims:  # otherwise those of other partitions, which are claimed by now, would be forgotten
                        raise
        return claims

    def _partition_of(self, claim: Claim) -> Partition | None:
        return self._assignment.partitions.get(TopicPartition(claim.place.box, claim.place.partition))

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Record a failed inline attempt, which is written with the next commit."""
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        partition = self._partition_of(claim)
        if partition is not None:
            partition.record_attempt(claim, Attempts(attempts, first_failed_at))

    def holds(self, claim: Claim) -> bool:
        """True if the claim is still held by this subscription."""
        partition = self._partition_of(claim)
        return partition is not None and partition.is_held(claim)

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim; return when it is durable."""
        partition = self._partition_of(claim)
        if partition is None or not partition.is_held(claim):
            raise Fenced(f"{claim.place.box}: partition {claim.place.partition} is assigned to another courier")
        await partition.settlement_writer.settle(claim, settlement)

    async def report_status(self, status: WorkerStatus) -> None:
        """Write the status of this worker into the ledger."""
        self._has_reported = True
        await write_worker_status(self._kafka, self._spec.ledger, status.pod, status)


def _size(claims: Iterable[Claim]) -> int:
    return sum(claim.message.size for claim in claims)


@asynccontextmanager
async def open_subscription(kafka: KafkaClient, spec: SubscriptionSpec) -> AsyncIterator[KafkaSubscription]:
    """Check the topics, commit the first offsets of a new group, and join it; leave the group at the end."""
    topics = (spec.source, spec.dead, spec.retry)
    found = await kafka.partition_counts(topics)
    for topic in topics:
        if topic not in found:
            raise BoxMissing(f"topic {topic} does not exist")
    await ledger_topic.ensure_ledger(kafka, spec.ledger, spec.dead)
    subscription = KafkaSubscription(kafka, spec)
    try:
        await ensure_first_offsets(kafka, spec)
        await subscription.open()
        yield subscription
    finally:
        await subscription.close()
