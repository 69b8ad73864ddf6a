"""Read the committed messages of a topic between given offsets, without a consumer group."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from gzip import BadGzipFile

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as driver

from deadletter.brokers.errors import BrokerUnreachable, Undecodable
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import EXPECTED_ERRORS, translated
from deadletter.brokers.kafka.fetch import MESSAGES_PER_BATCH, STALL_TIMEOUT_S, fetch_committed
from deadletter.brokers.kafka.offsets import end_offsets, start_offsets
from deadletter.brokers.types import StoredMessage
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import Span

DECODE_ERRORS = (driver.CorruptRecordException, driver.UnsupportedCodecError, BadGzipFile)
POLL_TIMEOUT_MS = 200
Records = dict[TopicPartition, list[ConsumerRecord]]


def to_stored_message(record: ConsumerRecord) -> StoredMessage:
    """Convert a record of the driver."""
    message = Message(record.key, record.value, record.headers, record.timestamp)
    return StoredMessage(Place(record.topic, record.partition, record.offset), message)


async def window(kafka: KafkaClient, topic: str) -> tuple[Span, ...]:
    """Return the start and end offset of each partition now."""
    partitions = range(await kafka.partition_count(topic))
    starts, ends = await start_offsets(kafka, topic, partitions), await end_offsets(kafka, topic, partitions)
    return tuple(Span(partition, starts[partition], ends[partition]) for partition in partitions)


async def read_spans(
    kafka: KafkaClient, topic: str, spans: Sequence[Span]
) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield the committed messages of the spans in order, one span after the other."""
    for span in spans:
        if span.start < span.end:
            await kafka.partition_count(topic)
            tp = TopicPartition(topic, span.partition)
            async with aclosing(fetch_committed(kafka, tp, span.start, span.end)) as batches:
                async for batch in batches:
                    yield batch


async def read_records(
    consumer: AIOKafkaConsumer,
    spans: Mapping[TopicPartition, tuple[int, int]],
    records_per_poll: int = MESSAGES_PER_BATCH,
) -> AsyncIterator[Records]:
    """Yield the committed records of each span (start, end); wait for transactions that are open below an end."""
    left = {tp: end for tp, (start, end) in spans.items() if start < end}
    if not left:
        return
    with translated(next(iter(left)).topic):
        consumer.assign(list(left))
        for tp in left:
            consumer.seek(tp, spans[tp][0])
    moved_at = asyncio.get_running_loop().time()
    while left:
        topic = next(iter(left)).topic
        with translated(topic), _translate_decode_errors(topic):
            polled = await consumer.getmany(*left, timeout_ms=POLL_TIMEOUT_MS, max_records=records_per_poll)
            finished = await _finished_partitions(consumer, left)
        now = asyncio.get_running_loop().time()
        moved_at = now if polled or finished else moved_at
        wanted = {tp: [one for one in records if one.offset < left[tp]] for tp, records in polled.items()}
        for tp in finished:
            del left[tp]
            consumer.pause(tp)
        if any(wanted.values()):
            yield {tp: records for tp, records in wanted.items() if records}
        elif now - moved_at > STALL_TIMEOUT_S:
            topic = next(iter(left)).topic
            raise BrokerUnreachable(
                f"{topic}: no message arrived for {STALL_TIMEOUT_S:.0f} s, before the end was reached"
            )


@contextmanager
def _translate_decode_errors(topic: str) -> Iterator[None]:
    """Raise Undecodable for a batch that the driver cannot decode, since the broker is not at fault."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DECODE_ERRORS) or not isinstance(error, EXPECTED_ERRORS):
            raise Undecodable(f"{topic}: a record batch cannot be decoded ({type(error).__name__})") from error
        raise


async def _finished_partitions(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return [tp for tp, end in ends.items() if await consumer.position(tp) >= end]


async def read_timestamp(kafka: KafkaClient, topic: str, partition: int, offset: int) -> int | None:
    """Return the timestamp of the message at this offset; None if there is no message at it."""
    tp = TopicPartition(topic, partition)
    starts, ends = await start_offsets(kafka, topic, [partition]), await end_offsets(kafka, topic, [partition])
    if not starts[partition] <= offset < ends[partition]:
        return None
    consumer = await kafka.start_consumer(max_partition_fetch_bytes=1)
    try:
        async for records in read_records(consumer, {tp: (offset, offset + 1)}):
            return int(records[tp][0].timestamp)
    finally:
        await consumer.stop()
    return None
