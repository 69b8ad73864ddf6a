"""Read from the group's consumer: source messages become claims, letters of the retry topic wait until they are due."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as driver

from deadletter.brokers.errors import BoxRefused
from deadletter.brokers.kafka import corrupt_batches
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.corrupt_batches import CorruptBatch
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.offsets import start_offsets
from deadletter.brokers.kafka.subscription.blocked import BlockedPartitions
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Claim

POLL_MARGIN_S = 0.5  # which a poll may take longer than it was asked to
Partition = SourcePartition | RetryPartition


class ClaimBuffer:
    """The claims that were read from the source and not handed out yet.

    `partitions` is shared with the subscription, which adds and removes partitions. `reopen` is called for a source
    partition that was deleted and created again.
    """

    def __init__(
        self,
        kafka: KafkaClient,
        group: str,
        partitions: Mapping[TopicPartition, Partition],
        blocked: BlockedPartitions,
        reopen: Callable[[TopicPartition, SourcePartition], None],
    ) -> None:
        self._kafka, self._group, self._partitions, self._blocked = kafka, group, partitions, blocked
        self._reopen = reopen
        self._claims: deque[Claim] = deque()
        self._first = 0  # index of the partition that is read first

    def clear(self) -> None:
        """Drop all claims, because their partitions are no longer assigned."""
        self._claims.clear()

    def take(self, limit: int, max_bytes: int) -> list[Claim]:
        """Take the next claims; the first one whatever its size."""
        claims: list[Claim] = []
        size = 0
        while self._claims and len(claims) < limit and (not claims or size + self._claims[0].message.size <= max_bytes):
            claims.append(self._claims.popleft())
            size += claims[-1].message.size
        return claims

    async def fill(self, consumer: AIOKafkaConsumer, limit: int, wait: float) -> None:
        """Read from the consumer unless some claims are left; wait at most `wait` and POLL_MARGIN_S seconds."""
        if self._claims:
            return
        limit = self._pause_full_partitions(consumer, limit)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait + POLL_MARGIN_S):
                    count = await self._poll_each_partition(consumer, limit)
                    if count < limit:
                        await self._poll(consumer, limit - count, 0 if count else wait)
        except driver.OffsetOutOfRangeError as error:
            await self._continue_at_log_start(consumer, error.args[0])
        except Exception as error:
            is_handled = corrupt_batches.is_content_error(error) and await self._handle_corrupt_batch(consumer)
            if not is_handled:
                raise translate(error, self._group) from error

    async def _poll_each_partition(self, consumer: AIOKafkaConsumer, limit: int) -> int:
        """Take an equal share of what is fetched of each partition, starting with another partition each time.

        The driver would return all it has of one partition, up to a whole fetch, before it comes to the next.
        """
        tps, count = list(self._partitions), 0
        self._first = (self._first + 1) % max(len(tps), 1)
        share = -(-limit // max(len(tps), 1))
        for tp in (*tps[self._first :], *tps[: self._first]) if len(tps) > 1 else ():
            if count < limit:
                count += await self._poll(consumer, min(share, limit - count), 0, tp)
        return count

    async def _poll(self, consumer: AIOKafkaConsumer, limit: int, wait: float, *only: TopicPartition) -> int:
        polled = await consumer.getmany(*only, timeout_ms=int(wait * 1000), max_records=limit)
        for tp, records in polled.items():
            partition = self._partitions.get(tp)
            # A log that ends before the position was created again, and is read from its start.
            if isinstance(partition, SourcePartition) and records[0].offset < partition.position:
                self._reopen(tp, partition)
            else:
                self._add_records(partition, records)
        return sum(map(len, polled.values()))

    async def _continue_at_log_start(self, consumer: AIOKafkaConsumer, positions: Mapping[TopicPartition, int]) -> None:
        """Go to the start of each log: retention has passed the position, or the topic was created again."""
        for tp, position in positions.items():
            start = (await start_offsets(self._kafka, tp.topic, [tp.partition]))[tp.partition]
            partition = self._partitions.get(tp)
            if partition is not None:
                with translated(tp.topic):
                    consumer.seek(tp, start)
            if isinstance(partition, SourcePartition) and start > position:
                partition.skip_deleted(start, position)

    def _pause_full_partitions(self, consumer: AIOKafkaConsumer, limit: int) -> int:
        """Pause source partitions that cannot keep more claims, resume others, and return how many may be read."""
        paused = consumer.paused()
        for tp, partition in self._partitions.items():
            if isinstance(partition, SourcePartition):
                readable = partition.count_readable(limit)
                if bool(readable) == (tp in paused):
                    (consumer.resume if readable else consumer.pause)(tp)
                limit = readable or limit
        return limit

    def _add_records(self, partition: Partition | None, records: "list[ConsumerRecord]") -> None:
        for record in records:
            if isinstance(partition, RetryPartition):
                partition.add(record)
            elif partition is not None and (claim := partition.claim(record)) is not None:
                self._claims.append(claim)

    async def _handle_corrupt_batch(self, consumer: AIOKafkaConsumer) -> bool:
        """Continue behind what was taken, and claim or report a corrupt batch; return False if there is none."""
        partitions = dict(self._partitions)
        with translated(self._group):
            for tp, partition in partitions.items():
                consumer.seek(tp, partition.position)
        for tp, partition in partitions.items():
            records, corrupt = await corrupt_batches.read_to_corrupt_batch(self._kafka, tp, partition.position)
            is_assigned = self._partitions.get(tp) is partition
            if corrupt is not None and is_assigned:
                self._add_records(partition, records)
                self._skip_corrupt_batch(consumer, tp, partition, corrupt)
                return True
        return False

    def _skip_corrupt_batch(
        self, consumer: AIOKafkaConsumer, tp: TopicPartition, partition: Partition, corrupt: CorruptBatch
    ) -> None:
        with translated(tp.topic):
            if isinstance(partition, SourcePartition):
                claim = partition.claim_corrupt_batch(corrupt)
                self._claims.extend([claim] if claim is not None else [])
                consumer.seek(tp, partition.position)
            else:  # report it, because the parked letters in it cannot be read
                consumer.pause(tp)
                self._blocked.block(tp, BoxRefused(corrupt.reason))
