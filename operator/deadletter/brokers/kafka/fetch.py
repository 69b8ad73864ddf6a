"""Letters of one partition straight out of the batches they lie in, the next fetch under way meanwhile.

The driver's consumer makes a record of eleven fields of each, one by one; reading takes twice as long that way.
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
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.types import StoredMessage
from deadletter.core.letters import Message, Place

MESSAGES_PER_BATCH = 50  # few enough that they are dealt with while they are still in the processor's nearest cache
FETCH_BYTES = 512 << 10  # a fetch; one is in hand and one under way
STALL_TIMEOUT_S = 90.0  # a transaction left open by a dead producer ends after its own time-out
WAIT_MS, RETRY_S = 500, 0.1
Aborted = list[tuple[int, int]]  # producers, and the first offset of each


async def fetch_committed(line: KafkaClient, tp: TopicPartition, start: int, end: int) -> AsyncGenerator[list[StoredMessage], None]:
    """What is committed from `start` to before `end`, in order; waits out transactions that are open there."""
    reader = PartitionReader(line, await line.start_fetch_client(tp.topic), tp)
    coming = asyncio.ensure_future(reader.next_batches(start))
    try:
        while start < end:
            batches, position = await coming
            if position < end:
                coming = asyncio.ensure_future(reader.next_batches(position))
            if batches is None:
                yield []
            for letters in unpack_messages(batches or (), tp, start, end):
                yield letters
            start = position
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await reader.client.close()


def unpack_messages(batches: Iterable[Any], tp: TopicPartition, start: int, end: int) -> Iterator[list[StoredMessage]]:
    """The letters of these batches that lie between; a fetch begins with the whole batch its first offset is in."""
    (box, partition), records = tp, chain.from_iterable(_up_to(end, batches))
    position, fault = start, None
    while fault is None:
        some: list[Any] = []
        try:
            some.extend(islice(records, MESSAGES_PER_BATCH))
        except Exception as error:  # noqa: BLE001  (decompressors have errors of their own)
            fault = error
        letters = [
            StoredMessage(
                Place(box, partition, one.offset), Message(one.key, one.value, tuple(one.headers), one.timestamp)
            )
            for one in some
            if start <= one.offset < end
        ]
        if letters:
            yield letters
        elif not some:
            break
        position = some[-1].offset + 1 if some else position
    if fault is not None:
        raise undecodable_error(tp, position, fault) from fault


def _up_to(end: int, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        if batch.next_offset >= end:
            return


def undecodable_error(tp: TopicPartition, offset: int, error: Exception) -> Undecodable:
    """What lies there is no letter that anybody can read."""
    return Undecodable(
        f"{tp.topic}: partition {tp.partition} cannot be read at offset {offset} ({type(error).__name__})"
    )


def select_committed(content: bytes, aborted: Aborted, position: int) -> tuple[list[Any], int]:
    """The batches that hold letters, and where to go on: at the first corrupt one, which is an error when it is met."""
    records, kept, start = MemoryRecords(content), [], position
    waiting, lost = sorted(aborted, key=lambda one: one[1]), set[int]()
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            if position > start:
                break
            raise driver.CorruptRecordException
        while waiting and batch.producer_id is not None and waiting[0][1] <= batch.base_offset:
            lost.add(waiting.pop(0)[0])
        if batch.is_control_batch:
            marker = next(batch, None)  # compaction may have taken it
            if marker is not None and ControlRecord.parse(marker.key) == ABORT_MARKER:
                lost.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in lost):
            kept.append(batch)
        position = batch.next_offset
    return kept, position


async def send_fetch(
    client: AIOKafkaClient, leader: int, tp: TopicPartition, position: int, most: int, wait_ms: int
) -> tuple[bytes, Aborted]:
    """What lies in a partition from this offset on, and which producers' transactions of it were aborted."""
    wanted = [(tp.topic, [(tp.partition, position, most)])]
    answer = await client.send(leader, FetchRequest(wait_ms, 1, most, READ_COMMITTED, wanted))
    ((_, ((_, code, _, *found),)),) = answer.topics
    if code:
        raise driver.for_code(code)
    return bytes(found[-1]), (found[2] if answer.API_VERSION >= 11 else found[-2]) or []


class PartitionReader:
    """Asks the leader of one partition."""

    def __init__(self, line: KafkaClient, client: AIOKafkaClient, tp: TopicPartition) -> None:
        self.client = client
        self._line, self._tp = line, tp

    async def next_batches(self, position: int) -> tuple[list[Any] | None, int]:
        """Batches from this offset on and where the next ones begin, as soon as there are any; None: they are gone."""
        topic, partition = self._tp
        clock = asyncio.get_running_loop().time
        deadline, was_broken = clock() + STALL_TIMEOUT_S, False
        with translated(topic):
            while clock() < deadline:
                try:
                    batches, following = select_committed(*await self._ask(position), position)
                except driver.OffsetOutOfRangeError:  # retention ate what we were about to read
                    return None, (await self._line.offsets_at(topic, [partition], EARLIEST))[partition]
                except driver.KafkaError as error:
                    is_broken = isinstance(error, driver.CorruptRecordException)
                    if is_broken and was_broken:  # once it may be the wire's fault
                        raise undecodable_error(self._tp, position, error) from error
                    if not (is_broken or error.retriable):
                        raise
                    was_broken = is_broken
                    await asyncio.sleep(RETRY_S)
                    await self.client.force_metadata_update()
                else:
                    if following > position:
                        return batches, following
        raise BrokerUnreachable(f"{topic}: reading stands still before its end")

    async def _ask(self, position: int) -> tuple[bytes, Aborted]:
        leader = self.client.cluster.leader_for_partition(self._tp)
        if leader is None or leader == -1:
            raise driver.LeaderNotAvailableError
        return await send_fetch(self.client, leader, self._tp, position, FETCH_BYTES, WAIT_MS)
