"""Complete transactions of this operator that were left open because a marker was never written (KIP-664).

A coordinator that cannot find a partition's leader while brokers restart takes the partition for deleted and skips its
marker (seen on Kafka 4.3: "likely deleted already and hence can be skipped"). The records stay open, readers of
committed messages wait before them, and the next commit of the same id would commit them although they were aborted.
So a new producer first writes the missing markers, with the outcome that the coordinator or the ledger knows.

Only transactions of its own id are affected: a marker changes nothing for the transactions of other producers.
"""

import asyncio
from collections.abc import Iterable

from aiokafka import TopicPartition

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.client import TRANSACTION_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.coordinator_requests import has_unstable_offset
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.offsets import LATEST, end_offsets, list_offsets
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import SubscriptionSpec
from deadletter.core.ledger.records import decode_chunk, highest_offset, parse_key

# By then other producers have ended their transactions, or their broker has aborted them.
OTHER_TRANSACTIONS_TIMEOUT_S = TRANSACTION_TIMEOUT_MS / 1000 + 5
POLL_INTERVAL_S = 0.1


async def first_open_offsets(kafka: KafkaClient, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first open offset of each partition in which any transaction is open."""
    times = dict.fromkeys(tps, LATEST)
    stable, ends = await list_offsets(kafka, times, read_committed=True), await list_offsets(kafka, times)
    found = {}
    for tp, end in ends.items():
        first = stable[tp]
        if isinstance(first, BrokerError):
            raise first
        if isinstance(end, BrokerError):
            raise end
        if first < end:
            found[tp] = first
    return found


async def default_targets(kafka: KafkaClient, spec: SubscriptionSpec, partition: int) -> list[TopicPartition]:
    """Return where the letters of a source or retry partition go; routes may name other topics."""
    counts = await kafka.partition_counts([spec.dead, spec.retry])
    return [TopicPartition(name, partition % count) for name, count in counts.items()]


async def complete_hanging(
    kafka: KafkaClient,
    producer: TransactionalProducer,
    tps: Iterable[TopicPartition],
    group: str = "",
    source: TopicPartition | None = None,
) -> None:
    """Write the markers of the last transaction before this producer where one is open, once for each partition.

    With `source`, do the same for an offset of the group that was committed in a transaction and is still unstable.
    """
    new = [tp for tp in tps if tp not in producer.checked_partitions]
    if producer.last_committed is not None and (new or source):
        found = await first_open_offsets(kafka, new) if new else {}
        is_unstable = source is not None and await has_unstable_offset(kafka, group, source)
        if found or is_unstable:
            await producer.write_markers(found, producer.last_committed, group if is_unstable else None)
    producer.checked_partitions.update(new)


async def complete_hanging_in_ledger(
    kafka: KafkaClient, producer: TransactionalProducer, tp: TopicPartition, settler: int | None = None
) -> None:
    """Complete hanging transactions in a ledger partition, and wait for those of other producers to end.

    What is still open then is of this id, and the coordinator has forgotten its outcome. It was committed if what the
    writer of the partition `settler` published in it is visible to consumers.
    """
    await end_offsets(kafka, tp.topic, [tp.partition])
    await complete_hanging(kafka, producer, [tp])
    deadline = asyncio.get_running_loop().time() + OTHER_TRANSACTIONS_TIMEOUT_S
    while tp in (found := await first_open_offsets(kafka, [tp])):
        if asyncio.get_running_loop().time() > deadline:
            committed = settler is not None and await _is_publication_visible(kafka, tp, found[tp], settler)
            await producer.write_markers([tp], committed)
            return
        await asyncio.sleep(POLL_INTERVAL_S)


async def _is_publication_visible(kafka: KafkaClient, tp: TopicPartition, first: int, settler: int) -> bool:
    """True if consumers can see the messages that the open ledger records stand for."""
    end = (await end_offsets(kafka, tp.topic, [tp.partition]))[tp.partition]
    published: dict[TopicPartition, int] = {}
    consumer = await kafka.start_consumer(isolation_level="read_uncommitted")
    try:
        async for records in reads.read_records(consumer, {tp: (first, end)}):
            for record in records[tp]:
                with translated(tp.topic):
                    key = parse_key(record.key or b"")
                    if key and (key.kind, key.settler) == ("produced", settler) and record.value is not None:
                        target = TopicPartition(key.topic, key.partition)
                        highest = highest_offset(key, decode_chunk(record.key, record.value))
                        published[target] = max(published.get(target, 0), highest)
    finally:
        await consumer.stop()
    return bool(published) and all([await _is_visible(kafka, target, offset) for target, offset in published.items()])


async def _is_visible(kafka: KafkaClient, tp: TopicPartition, offset: int) -> bool:
    await end_offsets(kafka, tp.topic, [tp.partition])
    if (await first_open_offsets(kafka, [tp])).get(tp, offset + 1) <= offset:
        return False
    return await reads.read_timestamp(kafka, tp.topic, tp.partition, offset) is not None
