"""What the consumer reads: messages of the source become claims, letters of the retry box wait for their time."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from deadletter.brokers.errors import BoxRefused
from deadletter.brokers.kafka import corrupt_batches
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.subscription.blocked import BlockedPartitions
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Claim

Partition = SourcePartition | RetryPartition


class ClaimBuffer:
    """Claims that were read and not yet dealt out. `works`: the partitions; `shut`: why some of them stand still.

    `begin_anew` is told of a source whose log is not the one we know.
    """

    def __init__(
        self,
        line: KafkaClient,
        group: str,
        works: Mapping[TopicPartition, Partition],
        shut: BlockedPartitions,
        begin_anew: Callable[[TopicPartition, SourcePartition], None],
    ) -> None:
        self._line, self._group, self._works, self._shut = line, group, works, shut
        self._begin_anew = begin_anew
        self._left: deque[Claim] = deque()
        self._first = 0  # the partition that is read first

    def clear(self) -> None:
        """They are no longer ours."""
        self._left.clear()

    def take(self, limit: int, max_bytes: int) -> list[Claim]:
        """The next ones; the first of them whatever its size."""
        claims: list[Claim] = []
        size = 0
        while self._left and len(claims) < limit and (not claims or size + self._left[0].message.size <= max_bytes):
            claims.append(self._left.popleft())
            size += claims[-1].message.size
        return claims

    async def fill(self, consumer: AIOKafkaConsumer, limit: int, wait: float) -> None:
        """Read on, unless some are left; waits at most so many seconds and half a second more."""
        if self._left:
            return
        limit = self._room(consumer, limit)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait + 0.5):
                    read = await self._read_shares(consumer, limit)
                    if read < limit:
                        await self._read_some(consumer, limit - read, 0 if read else wait)
        except Exception as error:
            is_passed = corrupt_batches.is_content_error(error) and await self._read_around(consumer)
            if not is_passed:
                raise translate(error, self._group) from error

    async def _read_shares(self, consumer: AIOKafkaConsumer, limit: int) -> int:
        """Read an equal share from each partition that has messages at hand, beginning with another one each time.

        The driver would give all it has of one partition before it comes to the next: up to a whole fetch.
        """
        partitions, read = list(self._works), 0
        self._first = (self._first + 1) % max(len(partitions), 1)
        share = -(-limit // max(len(partitions), 1))
        for tp in (*partitions[self._first :], *partitions[: self._first]) if len(partitions) > 1 else ():
            if read < limit:
                read += await self._read_some(consumer, min(share, limit - read), 0, tp)
        return read

    async def _read_some(self, consumer: AIOKafkaConsumer, limit: int, wait: float, *only: TopicPartition) -> int:
        records = await consumer.getmany(*only, timeout_ms=int(wait * 1000), max_records=limit)
        for tp, found in records.items():
            self._look_over(tp, self._works.get(tp), found)
        return sum(map(len, records.values()))

    def _room(self, consumer: AIOKafkaConsumer, limit: int) -> int:
        """How many may be read now; a partition that must not take any more is paused."""
        paused = consumer.paused()
        for tp, work in self._works.items():
            if isinstance(work, SourcePartition):
                room = work.count_readable(limit)
                if bool(room) == (tp in paused):
                    (consumer.resume if room else consumer.pause)(tp)
                limit = room or limit
        return limit

    def _look_over(self, tp: TopicPartition, work: Partition | None, records: "list[ConsumerRecord]") -> None:
        # The driver goes to the first message of a log that ends before the one it asks for.
        if isinstance(work, SourcePartition) and records[0].offset < work.position:
            self._begin_anew(tp, work)
        else:
            self._lay_out(work, records)

    def _lay_out(self, work: Partition | None, records: "list[ConsumerRecord]") -> None:
        for record in records:
            if isinstance(work, RetryPartition):
                work.add(record)
            elif work is not None and (claim := work.claim(record)) is not None:
                self._left.append(claim)

    async def _read_around(self, consumer: AIOKafkaConsumer) -> bool:
        """Go on behind what was taken; was there a batch that cannot be read, and is now passed or said?"""
        works = dict(self._works)
        with translated(self._group):
            for tp, work in works.items():
                consumer.seek(tp, work.position)
        for tp, work in works.items():
            records, unread = await corrupt_batches.read_to_corrupt_batch(self._line, tp, work.position)
            is_held = self._works.get(tp) is work
            if unread is not None and is_held:
                self._lay_out(work, records)
                self._pass(consumer, tp, work, unread)
                return True
        return False

    def _pass(
        self, consumer: AIOKafkaConsumer, tp: TopicPartition, work: Partition, unread: corrupt_batches.CorruptBatch
    ) -> None:
        with translated(tp.topic):
            if isinstance(work, SourcePartition):
                claim = work.claim_corrupt_batch(unread)
                self._left.extend([claim] if claim is not None else [])
                consumer.seek(tp, work.position)
            else:  # letters of ours that wait there cannot be had: a human must know
                consumer.pause(tp)
                self._shut.block(tp, BoxRefused(unread.reason))
