"""Read and write the ledger topic, up to the high watermark, so that no open transaction hides a settlement."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.driver_shutdown import discard_producer
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.ledger_topic import LEDGER_PARTITIONS
from deadletter.brokers.kafka.offsets import end_offsets, start_offsets
from deadletter.brokers.kafka.send_batches import PartitionBatches, TopicLimits, pack_messages, send_batches
from deadletter.brokers.newer_ledger_records import log_skipped_record
from deadletter.core.heartbeats import WorkerStatus, stored_fields
from deadletter.core.ledger.records import Key, encode_worker_status, parse_key, worker_key
from deadletter.core.letters import Message

LEDGER_FETCH_BYTES = 256 << 10  # of a partition: a chunk takes up to 8 KiB and is written again at every settlement
RECORDS_PER_POLL = 200
STATUS_TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000  # of one write; the next status is written with another producer
KeyFilter = Callable[[Key], bool]
LedgerEntries = dict[bytes, tuple[Key, bytes]]
Records = Iterable[tuple[bytes, bytes | None]]  # key and value; None deletes the key


def ledger_partition(partition: int) -> int:
    """Return the ledger partition that holds the records of a partition of another topic."""
    return partition % LEDGER_PARTITIONS


async def read_ledger(
    kafka: KafkaClient, ledger: str, is_wanted: KeyFilter, partitions: Sequence[int] | None = None
) -> LedgerEntries:
    """Return the last value of every wanted key; skip unknown kinds, and return nothing if there is no ledger."""
    if ledger not in await kafka.partition_counts([ledger]):
        return {}
    wanted = range(LEDGER_PARTITIONS) if partitions is None else partitions
    starts, ends = await start_offsets(kafka, ledger, wanted), await end_offsets(kafka, ledger, wanted)
    spans = {TopicPartition(ledger, p): (starts[p], ends[p]) for p in wanted}
    entries: LedgerEntries = {}
    if all(start >= end for start, end in spans.values()):
        return entries
    consumer = await start_ledger_consumer(kafka)
    try:
        async for records in reads.read_records(consumer, spans, RECORDS_PER_POLL):
            for batch in records.values():
                for record in batch:
                    key = record.key or b""
                    if (parsed := parse_key(key)) is None:
                        log_skipped_record(ledger, key)
                    elif is_wanted(parsed):
                        _apply_record(entries, key, parsed, record.value)
    finally:
        await consumer.stop()
    return entries


async def start_ledger_consumer(kafka: KafkaClient) -> AIOKafkaConsumer:
    """Return a consumer with fetch sizes for the small records of ledgers."""
    return await kafka.start_consumer(
        max_partition_fetch_bytes=LEDGER_FETCH_BYTES, fetch_max_bytes=4 * LEDGER_FETCH_BYTES
    )


def _apply_record(entries: LedgerEntries, key: bytes, parsed: Key, value: bytes | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = (parsed, value)


async def pack_ledger_records(ledger: str, partition: int, records: Records, limits: TopicLimits) -> PartitionBatches:
    """Pack the ledger records of a partition of another topic, to be sent in a transaction."""
    return await pack_messages(ledger, ledger_partition(partition), (Message(*record) for record in records), limits)


async def write_without_transaction(kafka: KafkaClient, ledger: str, records: Mapping[int, Records]) -> None:
    """Write records that nothing else depends on, by ledger partition; the producer is started for this call."""
    packed = await _pack_without_transaction(kafka, ledger, records)
    producer = await kafka.start_producer()
    try:
        with translated("the ledger"):
            await send_batches(producer, packed)
    finally:
        await discard_producer(producer)


async def _pack_without_transaction(
    kafka: KafkaClient, ledger: str, records: Mapping[int, Records]
) -> list[PartitionBatches]:
    limits = TopicLimits(kafka)
    return [
        await pack_messages(ledger, partition, (Message(*record) for record in some), limits, in_transaction=False)
        for partition, some in records.items()
    ]


async def write_worker_status(kafka: KafkaClient, ledger: str, pod: str, status: WorkerStatus | None) -> None:
    """Write the status of a worker with the shared producer; None deletes it."""
    key = worker_key(pod)
    value = None if status is None else encode_worker_status(key, stored_fields(status))
    packed = await _pack_without_transaction(kafka, ledger, {0: [(key, value)]})
    with translated("the ledger"):
        async with kafka.shared_producer() as producer, asyncio.timeout(STATUS_TIMEOUT_S):
            await send_batches(producer, packed)


async def delete_keys(kafka: KafkaClient, ledger: str, is_wanted: KeyFilter) -> None:
    """Write a tombstone for every wanted key, into the partition that holds it."""
    tombstones = {}
    for partition in range(LEDGER_PARTITIONS):
        entries = await read_ledger(kafka, ledger, is_wanted, [partition])
        if entries:
            tombstones[partition] = [(key, None) for key in entries]
    if tombstones:
        await write_without_transaction(kafka, ledger, tombstones)
