"""Read up to a record batch that the driver cannot decode, and return that batch as raw bytes.

A batch may have a wrong checksum, an unknown codec or a header name that is not UTF-8. When the driver meets one, it
drops what it had already fetched for the caller, of this partition and of others. So the caller starts again behind the
last message it took, and in the partition with such a batch everything before it is read here.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka import errors as driver
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords

from deadletter.brokers.errors import BoxRefused
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.fetch import send_fetch
from deadletter.brokers.kafka.offsets import end_offsets

MAX_READ_BYTES = 4 << 20
MAX_OFFSETS_PER_BATCH = 1 << 20  # a corrupt header may claim any number
BATCH_PREFIX = struct.Struct(">qi")  # base offset, length of what follows
LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_POSITION = 23  # in the batch header
_USAGE_ERRORS = (driver.IllegalOperation, driver.ConsumerStoppedError)


@dataclass(slots=True, frozen=True)
class CorruptBatch:
    """The raw bytes of a batch whose messages, from `first_offset` to before `end_offset`, cannot be decoded."""

    first_offset: int
    end_offset: int
    content: bytes
    reason: str


def is_content_error(error: Exception) -> bool:
    """True if the error may come from the content of a batch; decompressors raise errors of their own types."""
    if isinstance(error, driver.KafkaError):
        return isinstance(error, driver.CorruptRecordException | driver.UnsupportedCodecError)
    return not isinstance(error, _USAGE_ERRORS)


async def read_to_corrupt_batch(
    kafka: KafkaClient, tp: TopicPartition, start: int
) -> tuple[list[ConsumerRecord], CorruptBatch | None]:
    """Return the messages from `start` up to the first corrupt batch, and that batch if there is one in this fetch."""
    await end_offsets(kafka, tp.topic, [tp.partition])
    with translated(tp.topic):
        leader = kafka.metadata.leader(tp)
        content, aborted = await send_fetch(await kafka.shared_client(), leader, tp, start, MAX_READ_BYTES, 0)
    reader = PartitionRecords(tp, MemoryRecords(content), aborted, start, None, None, True, READ_COMMITTED)
    found: list[ConsumerRecord] = []
    try:
        found.extend(reader)
    except Exception as error:  # noqa: BLE001  (an error of any type comes from this batch)
        return found, _find_corrupt_batch(tp, content, reader.next_fetch_offset, type(error).__name__)
    return found, None


def _find_corrupt_batch(tp: TopicPartition, content: bytes, first: int, error: str) -> CorruptBatch:
    """Return the batch that holds the offset `first`."""
    batches = list(_split_batches(content))
    for index, (base, batch) in enumerate(batches):
        if batches[index + 1 :]:
            end = batches[index + 1][0]
        else:
            end = base + LAST_OFFSET_DELTA.unpack_from(batch, LAST_OFFSET_DELTA_POSITION)[0] + 1
        if end > first:
            if end - first > MAX_OFFSETS_PER_BATCH:
                break
            reason = f"the batch at offsets {base} to {end - 1} of {tp.topic}, partition {tp.partition}, cannot be read"
            return CorruptBatch(first, end, batch, f"{reason}: {error}")
    raise BoxRefused(f"{tp.topic}: partition {tp.partition} cannot be read at offset {first} ({error})")


def _split_batches(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield base offset and bytes of each complete batch."""
    position = 0
    while position + BATCH_PREFIX.size + LAST_OFFSET_DELTA_POSITION < len(content):
        base, length = BATCH_PREFIX.unpack_from(content, position)
        end = position + BATCH_PREFIX.size + length
        if length <= LAST_OFFSET_DELTA_POSITION or end > len(content):
            return
        yield base, content[position:end]
        position = end
