"""Open the partitions that the group assigns to this consumer, and close them when the group takes them back."""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from deadletter.brokers.errors import BrokerError, Fenced, GroupOffsetsLost
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.driver_shutdown import cancel_tasks
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.subscription.blocked import BlockedPartitions
from deadletter.brokers.kafka.subscription.claim_buffer import ClaimBuffer, Partition
from deadletter.brokers.kafka.subscription.group_offsets import is_assigned
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import SubscriptionSpec

REOPEN_INTERVAL_S = 1.0
JOIN_TIMEOUT_S = 90.0


class PartitionAssignment(ConsumerRebalanceListener):  # type: ignore[misc]
    """The open partitions of this consumer, and the tasks that open the other assigned ones.

    It must be created after the metadata of the source was read.
    """

    def __init__(self, kafka: KafkaClient, spec: SubscriptionSpec) -> None:
        self._kafka, self._spec = kafka, spec
        self._consumer: AIOKafkaConsumer = None
        self._source_id = kafka.metadata.topic_id(spec.source)
        self._opening: set[asyncio.Task[None]] = set()
        self._joined = asyncio.Event()
        self._is_closing = False
        self.partitions: dict[TopicPartition, Partition] = {}
        self.blocked = BlockedPartitions()
        self.buffer = ClaimBuffer(kafka, spec.group, self.partitions, self.blocked, self._reopen)
        self.failure: BrokerError | None = None  # of a partition that cannot be opened, which no retry can help
        self.lost_letters = 0
        self.deleted_messages = 0

    async def join(self, consumer: AIOKafkaConsumer) -> None:
        """Subscribe the consumer; return when its first partitions are open, so that later messages are received."""
        self._joined.clear()
        self._consumer = consumer
        consumer.subscribe([self._spec.source, self._spec.retry], listener=self)
        with translated(self._spec.group):
            await asyncio.wait_for(self._joined.wait(), JOIN_TIMEOUT_S)
            if self._opening:
                await asyncio.wait(list(self._opening), timeout=JOIN_TIMEOUT_S)

    async def close(self) -> None:
        """Release all partitions and open no others."""
        self._is_closing = True
        await self.release()

    async def release(self) -> None:
        """Write the pending settlements of all partitions, and drop their claims."""
        await cancel_tasks(self._opening)
        partitions = list(self.partitions.values())
        self.partitions.clear()
        self.buffer.clear()
        self.blocked.clear()
        await asyncio.gather(*(partition.close(flush=True) for partition in partitions), return_exceptions=True)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Release all partitions before the group rebalances."""
        del revoked
        await self.release()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Start to open the assigned partitions; nothing is fetched from a partition before it is open."""
        for tp in assigned if not self._is_closing else ():
            self._start_opening(tp)
        self._joined.set()

    def _start_opening(self, tp: TopicPartition, former: SourcePartition | None = None) -> None:
        self._consumer.pause(tp)
        self._consumer.seek(tp, 0)  # any position, so that the driver does not look for one itself
        task = asyncio.ensure_future(self._open_until_done(tp, former))
        self._opening.add(task)
        task.add_done_callback(self._finish_opening)

    def _reopen(self, tp: TopicPartition, former: SourcePartition) -> None:
        """Open a source partition that was deleted and created again; the state of the former log is worthless."""
        del self.partitions[tp]
        self._start_opening(tp, former)

    def _finish_opening(self, task: "asyncio.Task[None]") -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = translate(error, "a partition could not be opened")

    async def _open_until_done(self, tp: TopicPartition, former: SourcePartition | None) -> None:
        if former is not None:
            await asyncio.shield(former.close(flush=False))
        while True:
            if await self._try_open(tp, is_recreated=former is not None):
                return
            await asyncio.sleep(REOPEN_INTERVAL_S)

    async def _try_open(self, tp: TopicPartition, is_recreated: bool) -> bool:
        """Open a partition; return False if it must be tried again."""
        partition = self._create(tp, is_recreated)
        try:
            start = await partition.open()
            with translated(tp.topic):
                self._consumer.seek(tp, start)
                self._consumer.resume(tp)
            self.partitions[tp] = partition
            self.blocked.unblock(tp)
        except BaseException as error:
            await asyncio.shield(partition.close(flush=False))
            if isinstance(error, Fenced):
                return not is_assigned(self._consumer, tp)
            if isinstance(error, GroupOffsetsLost):
                return await self._open_if_recreated(tp, error)
            if isinstance(error, BrokerError) and error.is_transient:
                self.blocked.block(tp, error)
                return False
            raise
        return True

    async def _open_if_recreated(self, tp: TopicPartition, error: GroupOffsetsLost) -> bool:
        """Open a partition from its start if the source was created again, since Kafka then deletes its offsets."""
        await self._kafka.partition_counts([self._spec.source])
        if self._kafka.metadata.topic_id(self._spec.source) == self._source_id:
            raise error
        return await self._try_open(tp, is_recreated=True)

    def _create(self, tp: TopicPartition, is_recreated: bool) -> Partition:
        if tp.topic == self._spec.retry:
            return RetryPartition(self._kafka, self._consumer, self._spec, tp, self._count_lost)
        return SourcePartition(self._kafka, self._consumer, self._spec, tp, self._count_deleted, is_recreated)

    def _count_lost(self, letters: int) -> None:
        self.lost_letters += letters

    def _count_deleted(self, messages: int) -> None:
        self.deleted_messages += messages
