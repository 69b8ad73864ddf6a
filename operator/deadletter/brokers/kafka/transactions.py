"""The only room that begins, commits or aborts a transaction.

aiokafka commits happily although a send was refused, so every send is awaited before the commit; after any abort or
error its producer is thrown away, for it would go on with wrong sequence numbers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.conn import AIOKafkaConnection
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import record_batches
from deadletter.brokers.kafka.client import TRANSACTION_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.coordinator_requests import last_transaction_committed
from deadletter.brokers.kafka.driver_internals import discard_producer
from deadletter.brokers.kafka.errors import EXPECTED_ERRORS, translate
from deadletter.brokers.kafka.record_batches import PartitionBatches, TopicLimits

LONGEST = TRANSACTION_TIMEOUT_MS / 1000 * 0.9
ABORT_TIMEOUT = 3.0
IDLE = 500.0  # the driver drops connections that were idle a little longer


class Transaction:
    """What can be done while it is open; leaving the block commits."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def send(self, parcels_: Sequence[PartitionBatches]) -> list[list[int]]:
        """Send and await all; the offsets they got, known before the commit."""
        return await record_batches.send_batches(self._producer, parcels_)

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Move the group's offsets together with what was sent."""
        await self._producer.send_offsets_to_transaction(dict(offsets), group)


class TransactionalProducer:
    """One transactional id. Whoever opens it last is the only one who can commit.

    `last_word`: was the last transaction before us committed; `cleared`: where nothing of ours is left open.
    """

    def __init__(self, line: KafkaClient, name: str, producer: AIOKafkaProducer, word: bool | None = None) -> None:
        self._line = line
        self.name = name
        self.topic_limits = TopicLimits(line)
        self.last_committed = word
        self.checked_partitions: set[TopicPartition] = set()
        self._producer: AIOKafkaProducer | None = producer
        self._committed: tuple[float, list[AIOKafkaConnection]] | None = None

    @classmethod
    async def open(cls, line: KafkaClient, name: str) -> "TransactionalProducer":
        """Fence every earlier producer of this id and finish its transaction."""
        word = await last_transaction_committed(line, name)
        if word is not None:
            line.last_outcomes[name] = word
        return cls(line, name, await line.start_producer(name), line.last_outcomes.get(name))

    @property
    def is_spent(self) -> bool:
        """After an error nothing can be done here: open a new room."""
        return self._producer is None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Commit at the end; on any error abort and be spent. The error is ours."""
        producer = self._producer
        if producer is None:
            raise BrokerUnreachable(f"{self.name}: an earlier transaction failed")
        try:
            async with asyncio.timeout(LONGEST):
                self._check_touch()
                await producer.begin_transaction()
                yield Transaction(producer)
                await producer.commit_transaction()
            self._note(producer)
        except BaseException as error:
            await asyncio.shield(self._give_up(producer))
            if isinstance(error, EXPECTED_ERRORS):
                raise translate(error, self.name) from error
            raise

    def _note(self, producer: AIOKafkaProducer) -> None:
        connections = list(producer.client._conns.values())  # noqa: SLF001  (nothing else tells of a lost one)
        self._committed = (asyncio.get_running_loop().time(), connections)
        self._line.last_outcomes.pop(self.name, None)  # of our own transaction the coordinator tells

    def _check_touch(self) -> None:
        """A broker that went away since our last commit may have forgotten a marker (see `dangling`).

        The next abort of this producer would then take back what was committed, so it must not begin anything.
        """
        if self._committed is None:
            return
        at, connections = self._committed
        is_lost = any(not connection.connected() for connection in connections)
        if is_lost and asyncio.get_running_loop().time() - at < IDLE:
            raise BrokerUnreachable(f"{self.name}: the broker went away after the last transaction")

    async def write_markers(self, places: Iterable[TopicPartition], committed: bool, group: str | None = None) -> None:
        """Put markers of ours behind whatever of ours is open in these partitions and the group's offsets."""
        producer = self._producer
        if producer is None:
            raise BrokerUnreachable(f"{self.name}: an earlier transaction failed")
        try:
            async with asyncio.timeout(LONGEST):
                await _mark(producer, places, group, committed)
            self._producer = None
            await discard_producer(producer)
            self._producer = await self._line.start_producer(self.name)
        except BaseException as error:
            await asyncio.shield(self._give_up(producer))
            if isinstance(error, EXPECTED_ERRORS):
                raise translate(error, self.name) from error
            raise

    async def _give_up(self, producer: AIOKafkaProducer) -> None:
        self._producer = None
        # Best effort: an aborted transaction frees waiting readers at once, a forgotten one after its time-out.
        with contextlib.suppress(*EXPECTED_ERRORS):
            await asyncio.wait_for(producer.abort_transaction(), ABORT_TIMEOUT)
        await discard_producer(producer)

    async def close(self) -> None:
        """Let go of the connection."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)


async def _mark(
    producer: AIOKafkaProducer, places: Iterable[TopicPartition], group: str | None, committed: bool
) -> None:
    """A transaction without a message: only its markers."""
    await producer.begin_transaction()
    for place in places:
        producer._txn_manager.maybe_add_partition_to_txn(place)  # noqa: SLF001  (no public way without a message)
    while group is not None and producer._txn_manager._txn_consumer_group is None:  # noqa: SLF001
        await producer._sender._do_add_offsets_to_txn(group)  # noqa: SLF001
    await (producer.commit_transaction() if committed else producer.abort_transaction())
