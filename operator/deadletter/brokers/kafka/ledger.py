"""The ledger as it is: read to the high watermark, so that no open transaction hides a settlement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from aiokafka import TopicPartition

from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.client import EARLIEST, KafkaClient
from deadletter.brokers.kafka.driver_internals import discard_producer
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.record_batches import PartitionBatches, TopicLimits, pack_messages, send_batches
from deadletter.brokers.kafka.topics import LEDGER_PARTITIONS
from deadletter.brokers.skipped_records import log_skipped
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import Key, encode_worker_status, parse_key, worker_key
from deadletter.core.letters import Message

LEDGER_FETCH_BYTES = 256 << 10  # a partition: a chunk takes up to 8 KiB and is written again at every settlement
RECORDS_PER_POLL = 200
Wanted = Callable[[Key], bool]
Kept = dict[bytes, tuple[Key, bytes]]
Entries = Iterable[tuple[bytes, bytes | None]]


def ledger_partition(partition: int) -> int:
    """Where the records of a box partition lie."""
    return partition % LEDGER_PARTITIONS


async def read_ledger(kafka: KafkaClient, ledger: str, wanted: Wanted, partitions: Sequence[int] | None = None) -> Kept:
    """Return the last value of every wanted key, unknown kinds skipped; nothing when there is no ledger."""
    if ledger not in await kafka.partition_counts([ledger]):
        return {}
    asked = range(LEDGER_PARTITIONS) if partitions is None else partitions
    starts, ends = await kafka.offsets_at(ledger, asked, EARLIEST), await kafka.offsets_at(ledger, asked)
    spans = {TopicPartition(ledger, p): (starts[p], ends[p]) for p in asked}
    kept: Kept = {}
    if all(start >= end for start, end in spans.values()):
        return kept
    consumer = await kafka.start_consumer(max_partition_fetch_bytes=LEDGER_FETCH_BYTES, fetch_max_bytes=4 * LEDGER_FETCH_BYTES)
    try:
        async for records in reads.read_records(consumer, spans, RECORDS_PER_POLL):
            for batch in records.values():
                for record in batch:
                    key = record.key or b""
                    if (parsed := parse_key(key)) is None:
                        log_skipped(ledger, key)
                    elif wanted(parsed):
                        _keep(kept, key, parsed, record.value)
    finally:
        await consumer.stop()
    return kept


def _keep(kept: Kept, key: bytes, parsed: Key, value: bytes | None) -> None:
    if value is None:
        kept.pop(key, None)
    else:
        kept[key] = (parsed, value)


async def pack_ledger_records(ledger: str, partition: int, entries: Entries, targets: TopicLimits) -> PartitionBatches:
    """Records for the ledger partition of a box partition, to be sent in a transaction."""
    return await pack_messages(ledger, ledger_partition(partition), (Message(*entry) for entry in entries), targets)


async def write_without_transaction(kafka: KafkaClient, ledger: str, entries: Mapping[int, Entries]) -> None:
    """Write records that stand for nothing else, by partition: tombstones of housekeeping, a courier's word."""
    targets = TopicLimits(kafka)
    packed = [
        await pack_messages(ledger, partition, (Message(*entry) for entry in some), targets, in_transaction=False)
        for partition, some in entries.items()
    ]
    producer = await kafka.start_producer()
    try:
        with translated("the ledger"):
            await send_batches(producer, packed)
    finally:
        await discard_producer(producer)


async def write_worker_status(kafka: KafkaClient, ledger: str, pod: str, word: WorkerStatus | None) -> None:
    """What a worker last said; None takes it back."""
    key = worker_key(pod)
    value = None if word is None else encode_worker_status(key, asdict(word))
    await write_without_transaction(kafka, ledger, {0: [(key, value)]})


async def delete_keys(kafka: KafkaClient, ledger: str, wanted: Wanted) -> None:
    """Tombstone every wanted key, in the partition where it lies."""
    gone = {}
    for partition in range(LEDGER_PARTITIONS):
        kept = await read_ledger(kafka, ledger, wanted, [partition])
        if kept:
            gone[partition] = [(key, None) for key in kept]
    if gone:
        await write_without_transaction(kafka, ledger, gone)
