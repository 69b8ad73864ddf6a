"""Bounded reads of what is committed; nothing is consumed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from gzip import BadGzipFile

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as driver

from deadletter.brokers.errors import BrokerUnreachable, Undecodable
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.errors import EXPECTED_ERRORS, translated
from deadletter.brokers.kafka.fetch import MESSAGES_PER_BATCH, STALL_TIMEOUT_S, fetch_committed
from deadletter.brokers.types import StoredMessage
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import Span

BROKEN = (driver.CorruptRecordException, driver.UnsupportedCodecError, BadGzipFile)
Records = dict[TopicPartition, list[ConsumerRecord]]


def to_stored_message(record: ConsumerRecord) -> StoredMessage:
    """A record as message and place."""
    message = Message(record.key, record.value, record.headers, record.timestamp)
    return StoredMessage(Place(record.topic, record.partition, record.offset), message)


async def window(line: KafkaClient, box: str) -> tuple[Span, ...]:
    """First and end offset of each partition now."""
    partitions = range(await line.partition_count(box))
    starts, ends = await line.offsets_at(box, partitions, EARLIEST), await line.offsets_at(box, partitions)
    return tuple(Span(partition, starts[partition], ends[partition]) for partition in partitions)


async def read_spans(line: KafkaClient, box: str, spans: Sequence[Span]) -> AsyncGenerator[list[StoredMessage], None]:
    """What is committed in the spans, one after the other, in order."""
    for span in spans:
        if span.start < span.end:
            await line.partition_count(box)
            async with aclosing(fetch_committed(line, TopicPartition(box, span.partition), span.start, span.end)) as batches:
                async for batch in batches:
                    yield batch


async def read_records(
    consumer: AIOKafkaConsumer, wanted: Mapping[TopicPartition, tuple[int, int]], batch: int = MESSAGES_PER_BATCH
) -> AsyncIterator[Records]:
    """Every committed record of `wanted` (start, end), waiting out transactions that are open below an end."""
    left = {tp: end for tp, (start, end) in wanted.items() if start < end}
    if not left:
        return
    with translated(next(iter(left)).topic):
        consumer.assign(list(left))
        for tp in left:
            consumer.seek(tp, wanted[tp][0])
    moved = asyncio.get_running_loop().time()
    while left:
        with translated(next(iter(left)).topic), _decoded(next(iter(left)).topic):
            records = await consumer.getmany(*left, timeout_ms=200, max_records=batch)
            arrived = await _arrived(consumer, left)
        now = asyncio.get_running_loop().time()
        moved = now if records or arrived else moved
        kept = {tp: [one for one in found if one.offset < left[tp]] for tp, found in records.items()}
        for tp in arrived:
            del left[tp]
            consumer.pause(tp)
        if any(kept.values()):
            yield {tp: found for tp, found in kept.items() if found}
        elif now - moved > STALL_TIMEOUT_S:
            raise BrokerUnreachable(f"{next(iter(left)).topic}: reading stands still before its end")


@contextmanager
def _decoded(topic: str) -> Iterator[None]:
    """What the driver cannot decode has an error of its own: it is no fault of the broker."""
    try:
        yield
    except Exception as error:
        if isinstance(error, BROKEN) or not isinstance(error, EXPECTED_ERRORS):
            raise Undecodable(f"{topic}: a batch in it cannot be read ({type(error).__name__})") from error
        raise


async def _arrived(consumer: AIOKafkaConsumer, left: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return [tp for tp, end in left.items() if await consumer.position(tp) >= end]


async def read_timestamp(line: KafkaClient, box: str, partition: int, offset: int) -> int | None:
    """The timestamp of the letter at this offset; None when no letter lies there (any more)."""
    tp = TopicPartition(box, partition)
    starts, ends = await line.offsets_at(box, [partition], EARLIEST), await line.offsets_at(box, [partition])
    if not starts[partition] <= offset < ends[partition]:
        return None
    consumer = await line.start_consumer(max_partition_fetch_bytes=1)
    try:
        async for records in read_records(consumer, {tp: (offset, offset + 1)}):
            return int(records[tp][0].timestamp)
    finally:
        await consumer.stop()
    return None
