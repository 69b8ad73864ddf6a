"""Batches of a log that the driver cannot read: a wrong checksum, a codec nobody knows, a header name that is no text.

When it meets one, the driver forgets what it had already read for us, in this partition and in others. So reading
begins again behind what was taken, and where such a batch lies everything up to it is read here.
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

MOST_BYTES = 4 << 20
MOST_OFFSETS = 1 << 20  # in one batch; a broken header may claim anything
HEAD = struct.Struct(">qi")  # base offset, length of what follows
LAST = struct.Struct(">i")
LAST_AT = 23  # where the header says how many offsets the batch spans
_OTHERS = (driver.IllegalOperation, driver.ConsumerStoppedError)


@dataclass(slots=True, frozen=True)
class CorruptBatch:
    """A batch as it lies there; messages from `first` up to `end` are in it and cannot be had."""

    first_offset: int
    end_offset: int
    content: bytes
    reason: str


def is_content_error(error: Exception) -> bool:
    """May it come from what was read, and not from the broker? Decompressors have errors of their own."""
    if isinstance(error, driver.KafkaError):
        return isinstance(error, driver.CorruptRecordException | driver.UnsupportedCodecError)
    return not isinstance(error, _OTHERS)


async def read_to_corrupt_batch(line: KafkaClient, tp: TopicPartition, start: int) -> tuple[list[ConsumerRecord], CorruptBatch | None]:
    """Messages from `start` up to the first batch that cannot be read, and that batch; None: there is none here."""
    await line.offsets_at(tp.topic, [tp.partition])
    with translated(tp.topic):
        content, aborted = await send_fetch(await line.shared_client(), line.leader(tp), tp, start, MOST_BYTES, 0)
    reader = PartitionRecords(tp, MemoryRecords(content), aborted, start, None, None, True, READ_COMMITTED)
    found: list[ConsumerRecord] = []
    try:
        found.extend(reader)
    except Exception as error:  # noqa: BLE001  (whatever it is, this batch is why)
        return found, _unread(tp, content, reader.next_fetch_offset, type(error).__name__)
    return found, None


def _unread(tp: TopicPartition, content: bytes, first: int, error: str) -> CorruptBatch:
    found = list(_batches(content))
    for position, (base, batch) in enumerate(found):
        after = found[position + 1][0] if found[position + 1 :] else base + LAST.unpack_from(batch, LAST_AT)[0] + 1
        if after > first:
            if after - first > MOST_OFFSETS:
                break
            why = f"the batch from offset {base} up to {after} of {tp.topic}, partition {tp.partition}, cannot be read"
            return CorruptBatch(first, after, batch, f"{why}: {error}")
    raise BoxRefused(f"{tp.topic}: partition {tp.partition} cannot be read at offset {first} ({error})")


def _batches(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Base offset and bytes of each whole batch."""
    at = 0
    while at + HEAD.size + LAST_AT < len(content):
        base, length = HEAD.unpack_from(content, at)
        end = at + HEAD.size + length
        if length <= LAST_AT or end > len(content):
            return
        yield base, content[at:end]
        at = end
