"""Read the committed messages of one partition with raw Fetch requests, one ahead of the messages in use.

The driver's consumer builds a record of eleven fields for each message, one by one, and takes twice as long.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as driver
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords

from deadletter.brokers.errors import BrokerUnreachable, Undecodable
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import raise_driver_error, translated
from deadletter.brokers.kafka.offsets import start_offsets
from deadletter.brokers.types import StoredMessage
from deadletter.core.letters import Message, Place

MESSAGES_PER_BATCH = 50  # few enough that they are processed while they are still in the first-level cache
FETCH_BYTES = 512 << 10  # of one response; two are in memory at a time
STALL_TIMEOUT_S = 90.0  # longer than the timeout after which the broker aborts the transaction of a dead producer
MAX_WAIT_MS = 500
RETRY_INTERVAL_S = 0.1
AbortedTransactions = list[tuple[int, int]]  # producer id and first offset of each


async def fetch_committed(
    kafka: KafkaClient, tp: TopicPartition, start: int, end: int
) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield the committed messages from `start` to before `end` in order; wait for open transactions to end.

    An empty list says that retention has deleted the next messages.
    """
    reader = PartitionReader(kafka, await kafka.start_fetch_client(tp.topic), tp)
    pending = asyncio.ensure_future(reader.next_batches(start))
    try:
        while start < end:
            batches, position = await pending
            if position < end:
                pending = asyncio.ensure_future(reader.next_batches(position))
            if batches is None:
                yield []
            for messages in unpack_messages(batches or (), tp, start, end):
                yield messages
            start = position
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await reader.client.close()


def unpack_messages(batches: Iterable[Any], tp: TopicPartition, start: int, end: int) -> Iterator[list[StoredMessage]]:
    """Yield the messages of these batches from `start` to before `end`.

    A fetch returns the whole batch that holds its first offset, so messages before `start` are dropped here.
    """
    (topic, partition), records = tp, chain.from_iterable(_batches_before(end, batches))
    position, fault = start, None
    while fault is None:
        chunk: list[Any] = []
        try:
            chunk.extend(islice(records, MESSAGES_PER_BATCH))
        except Exception as error:  # noqa: BLE001  (decompressors raise errors of their own types)
            fault = error
        messages = [
            StoredMessage(
                Place(topic, partition, one.offset), Message(one.key, one.value, tuple(one.headers), one.timestamp)
            )
            for one in chunk
            if start <= one.offset < end
        ]
        if messages:
            yield messages
        elif not chunk:
            break
        position = chunk[-1].offset + 1 if chunk else position
    if fault is not None:
        raise undecodable_error(tp, position, fault) from fault


def _batches_before(end: int, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        if batch.next_offset >= end:
            return


def undecodable_error(tp: TopicPartition, offset: int, error: Exception) -> Undecodable:
    """Return the error for a message that cannot be decoded."""
    return Undecodable(
        f"{tp.topic}: partition {tp.partition} cannot be read at offset {offset} ({type(error).__name__})"
    )


def select_committed(content: bytes, aborted: AbortedTransactions, position: int) -> tuple[list[Any], int]:
    """Return the batches with committed messages, and the offset to continue at.

    Reading stops before a corrupt batch; it raises CorruptRecordException if that is the first one.
    """
    records, committed, start = MemoryRecords(content), [], position
    upcoming, aborting = sorted(aborted, key=lambda one: one[1]), set[int]()
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            if position > start:
                break
            raise driver.CorruptRecordException
        while upcoming and batch.producer_id is not None and upcoming[0][1] <= batch.base_offset:
            aborting.add(upcoming.pop(0)[0])
        if batch.is_control_batch:
            marker = next(batch, None)  # compaction may have removed it
            if marker is not None and ControlRecord.parse(marker.key) == ABORT_MARKER:
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            committed.append(batch)
        position = batch.next_offset
    return committed, position


async def send_fetch(
    client: AIOKafkaClient, leader: int, tp: TopicPartition, position: int, max_bytes: int, wait_ms: int
) -> tuple[bytes, AbortedTransactions]:
    """Return the raw batches of a partition from this offset on, and the aborted transactions among them."""
    wanted = [(tp.topic, [(tp.partition, position, max_bytes)])]
    response = await client.send(leader, FetchRequest(wait_ms, 1, max_bytes, READ_COMMITTED, wanted))
    ((_, ((_, code, _, *fields),)),) = response.topics
    raise_driver_error(code)
    return bytes(fields[-1]), (fields[2] if response.API_VERSION >= 11 else fields[-2]) or []


class PartitionReader:
    """Fetch from the leader of one partition, and retry while the leader moves."""

    def __init__(self, kafka: KafkaClient, client: AIOKafkaClient, tp: TopicPartition) -> None:
        self.client = client
        self._kafka, self._tp = kafka, tp

    async def next_batches(self, position: int) -> tuple[list[Any] | None, int]:
        """Return the next batches from this offset on, and the offset behind them, as soon as there are any.

        The batches are None if retention has deleted them; the offset is then the first that is left.
        """
        topic, partition = self._tp
        clock = asyncio.get_running_loop().time
        deadline, was_corrupt = clock() + STALL_TIMEOUT_S, False
        with translated(topic):
            while clock() < deadline:
                try:
                    batches, following = select_committed(*await self._fetch(position), position)
                except driver.OffsetOutOfRangeError:
                    return None, (await start_offsets(self._kafka, topic, [partition]))[partition]
                except driver.KafkaError as error:
                    is_corrupt = isinstance(error, driver.CorruptRecordException)
                    if is_corrupt and was_corrupt:  # the first time may be an error of the network
                        raise undecodable_error(self._tp, position, error) from error
                    if not (is_corrupt or error.retriable):
                        raise
                    was_corrupt = is_corrupt
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    await self.client.force_metadata_update()
                else:
                    if following > position:
                        return batches, following
        raise BrokerUnreachable(f"{topic}: no message arrived for {STALL_TIMEOUT_S:.0f} s, before the end was reached")

    async def _fetch(self, position: int) -> tuple[bytes, AbortedTransactions]:
        leader = self.client.cluster.leader_for_partition(self._tp)
        if leader is None or leader == -1:
            raise driver.LeaderNotAvailableError
        return await send_fetch(self.client, leader, self._tp, position, FETCH_BYTES, MAX_WAIT_MS)
