"""Begin, commit and abort Kafka transactions; no other module does.

aiokafka commits a transaction although a send in it was refused, so every send is awaited before the commit. After an
abort or an error its producer is discarded, because it would continue with wrong sequence numbers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.conn import AIOKafkaConnection
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import send_batches
from deadletter.brokers.kafka.client import TRANSACTION_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.coordinator_requests import last_transaction_committed
from deadletter.brokers.kafka.driver_shutdown import discard_producer
from deadletter.brokers.kafka.errors import EXPECTED_ERRORS, translate
from deadletter.brokers.kafka.send_batches import PartitionBatches, TopicLimits

MAX_TRANSACTION_S = TRANSACTION_TIMEOUT_MS / 1000 * 0.9
ABORT_TIMEOUT_S = 3.0
ADDED_POLL_INTERVAL_S = 0.001  # nothing in the driver wakes a task when a partition was added
CONNECTION_IDLE_S = 500.0  # the driver closes connections that were idle a little longer


class Transaction:
    """An open transaction; leaving the block of `TransactionalProducer.transaction` commits it."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def send(self, packed: Sequence[PartitionBatches]) -> list[list[int]]:
        """Send all batches, wait for every acknowledgement, and return the offsets of their messages."""
        await self._add_partitions([one.topic_partition for one in packed])
        return await send_batches.send_batches(self._producer, packed)

    async def _add_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Return when the coordinator has added these partitions to the transaction; raise if it refuses one.

        The driver sends a batch even if its partition was refused. If the right to write is granted just then, the
        broker appends a letter that no abort takes back and that the next commit of the id makes visible.
        """
        manager = self._producer._txn_manager  # noqa: SLF001  (the driver adds a partition only with a message)
        for tp in tps:
            manager.maybe_add_partition_to_txn(tp)
        ended = manager.wait_for_transaction_end()
        while manager.partitions_to_add() and not ended.done():
            await asyncio.wait([ended], timeout=ADDED_POLL_INTERVAL_S)
        if ended.done():
            ended.result()

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit the offsets of a group together with what was sent."""
        await self._producer.send_offsets_to_transaction(dict(offsets), group)


class TransactionalProducer:
    """A producer of one transactional id; whoever opens the id last is the only one who can commit.

    `last_committed`: True if the last transaction of the id before this producer was committed, None if unknown.
    `checked_partitions`: the partitions in which no transaction of this id is left open.
    """

    def __init__(
        self, kafka: KafkaClient, transactional_id: str, producer: AIOKafkaProducer, last_committed: bool | None = None
    ) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self.topic_limits = TopicLimits(kafka)
        self.last_committed = last_committed
        self.checked_partitions: set[TopicPartition] = set()
        self._producer: AIOKafkaProducer | None = producer
        self._last_commit: tuple[float, list[AIOKafkaConnection]] | None = None

    @classmethod
    async def open(cls, kafka: KafkaClient, transactional_id: str) -> "TransactionalProducer":
        """Fence every earlier producer of this id and end its transaction."""
        committed = await last_transaction_committed(kafka, transactional_id)
        if committed is not None:
            kafka.last_outcomes[transactional_id] = committed
        producer = await kafka.start_producer(transactional_id)
        return cls(kafka, transactional_id, producer, kafka.last_outcomes.get(transactional_id))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Commit at the end of the block; on an error abort, discard the producer and raise a BrokerError."""
        async with self._abort_on_error() as producer, asyncio.timeout(MAX_TRANSACTION_S):
            self._refuse_after_disconnect()
            await producer.begin_transaction()
            yield Transaction(producer)
            await producer.commit_transaction()
            self._remember_commit(producer)

    @asynccontextmanager
    async def _abort_on_error(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = self._producer
        if producer is None:
            raise BrokerUnreachable(f"{self._id}: an earlier transaction failed")
        try:
            yield producer
        except BaseException as error:
            await asyncio.shield(self._abort_and_discard(producer))
            if isinstance(error, EXPECTED_ERRORS):
                raise translate(error, self._id) from error
            raise

    def _remember_commit(self, producer: AIOKafkaProducer) -> None:
        connections = list(producer.client._conns.values())  # noqa: SLF001  (nothing else tells of a lost one)
        self._last_commit = (asyncio.get_running_loop().time(), connections)
        self._kafka.last_outcomes.pop(self._id, None)  # the coordinator knows how this transaction ended

    def _refuse_after_disconnect(self) -> None:
        """Raise if a broker disconnected since the last commit: it may have skipped a marker.

        See `hanging_transactions`. The next abort of this producer would then take back what was committed.
        """
        if self._last_commit is None:
            return
        committed_at, connections = self._last_commit
        is_lost = any(not connection.connected() for connection in connections)
        if is_lost and asyncio.get_running_loop().time() - committed_at < CONNECTION_IDLE_S:
            raise BrokerUnreachable(f"{self._id}: the broker disconnected after the last transaction")

    async def write_markers(self, tps: Iterable[TopicPartition], committed: bool, group: str | None = None) -> None:
        """Write markers that end what this id has left open in these partitions and in the group's offsets."""
        async with self._abort_on_error() as producer:
            async with asyncio.timeout(MAX_TRANSACTION_S):
                await _run_empty_transaction(producer, tps, group, committed)
            self._producer = None
            await discard_producer(producer)
            self._producer = await self._kafka.start_producer(self._id)

    async def _abort_and_discard(self, producer: AIOKafkaProducer) -> None:
        self._producer = None
        # Best effort: an abort lets readers go on at once, without it they wait for the timeout of the transaction.
        with contextlib.suppress(*EXPECTED_ERRORS):
            await asyncio.wait_for(producer.abort_transaction(), ABORT_TIMEOUT_S)
        await discard_producer(producer)

    async def close(self) -> None:
        """Close the connections without waiting."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)


async def _run_empty_transaction(
    producer: AIOKafkaProducer, tps: Iterable[TopicPartition], group: str | None, committed: bool
) -> None:
    """Run a transaction without a message, so that the coordinator writes its markers only."""
    await producer.begin_transaction()
    for tp in tps:
        producer._txn_manager.maybe_add_partition_to_txn(tp)  # noqa: SLF001  (no public way without a message)
    while group is not None and producer._txn_manager._txn_consumer_group is None:  # noqa: SLF001
        await producer._sender._do_add_offsets_to_txn(group)  # noqa: SLF001
    await (producer.commit_transaction() if committed else producer.abort_transaction())
