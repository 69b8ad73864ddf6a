"""The only room that begins, commits or aborts a transaction.

aiokafka commits happily although a send was refused, so every send is awaited before the commit; after any abort or
error its producer is thrown away, for it would go on with wrong sequence numbers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import parcels
from deadletter.brokers.kafka.errors import EXPECTED, translate
from deadletter.brokers.kafka.line import TRANSACTION_TIMEOUT_MS, Line, discard
from deadletter.brokers.kafka.parcels import Parcel, Targets

LONGEST = TRANSACTION_TIMEOUT_MS / 1000 * 0.9
ABORT_TIMEOUT = 3.0


class Transaction:
    """What can be done while it is open; leaving the block commits."""

    def __init__(self, producer: AIOKafkaProducer, targets: Targets) -> None:
        self._producer = producer
        self._targets = targets

    async def send(self, parcels_: Sequence[Parcel]) -> list[list[int]]:
        """Send and await all; the offsets they got, known before the commit."""
        return await parcels.send(self._producer, parcels_, self._targets)

    async def commit_offset(self, group: str, tp: TopicPartition, offset: int, metadata: str) -> None:
        """Move the group's offset together with what was sent."""
        await self._producer.send_offsets_to_transaction({tp: OffsetAndMetadata(offset, metadata)}, group)


class Room:
    """One transactional id. Whoever opens it last is the only one who can commit."""

    def __init__(self, line: Line, name: str, producer: AIOKafkaProducer) -> None:
        self._line = line
        self.name = name
        self.targets = Targets(line)
        self._producer: AIOKafkaProducer | None = producer

    @classmethod
    async def open(cls, line: Line, name: str) -> "Room":
        """Fence every earlier producer of this id and finish its transaction."""
        return cls(line, name, await line.producer(name))

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
                await producer.begin_transaction()
                yield Transaction(producer, self.targets)
                await producer.commit_transaction()
        except BaseException as error:
            await asyncio.shield(self._give_up(producer))
            if isinstance(error, EXPECTED):
                raise translate(error, self.name) from error
            raise

    async def end(self, tp: TopicPartition, committed: bool) -> None:
        """Put a marker of ours behind whatever of ours is open in this partition."""
        producer = self._producer
        if producer is None:
            raise BrokerUnreachable(f"{self.name}: an earlier transaction failed")
        try:
            async with asyncio.timeout(LONGEST):
                await producer.begin_transaction()
                producer._txn_manager.maybe_add_partition_to_txn(tp)  # noqa: SLF001  (a marker without a message)
                await (producer.commit_transaction() if committed else producer.abort_transaction())
            self._producer = None
            await discard(producer)
            self._producer = await self._line.producer(self.name)
        except BaseException as error:
            await asyncio.shield(self._give_up(producer))
            if isinstance(error, EXPECTED):
                raise translate(error, self.name) from error
            raise

    async def _give_up(self, producer: AIOKafkaProducer) -> None:
        self._producer = None
        # Best effort: an aborted transaction frees waiting readers at once, a forgotten one after its time-out.
        with contextlib.suppress(*EXPECTED):
            await asyncio.wait_for(producer.abort_transaction(), ABORT_TIMEOUT)
        await discard(producer)

    async def close(self) -> None:
        """Let go of the connection."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard(producer)
