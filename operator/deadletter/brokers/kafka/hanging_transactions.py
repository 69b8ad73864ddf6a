"""Records of ours that no marker ended.

A coordinator that cannot find a partition's leader while brokers restart takes the partition for deleted and skips its
marker (seen on 4.3: "likely deleted already and hence can be skipped"). The records stay open, readers of committed
messages stand still before them, and the next commit of the same id would commit them although they were given up.
So a new settler first ends what is open, the way the coordinator or the ledger says it ended.

Only ours: a marker of ours changes nothing for the transactions of others.
"""

import asyncio
from collections.abc import Iterable

from aiokafka import TopicPartition

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.kafka import reads
from deadletter.brokers.kafka.client import LATEST, TRANSACTION_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.coordinator_requests import has_unstable_offset
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import SubscriptionSpec
from deadletter.core.ledger.records import decode_chunk, highest_offset, parse_key

OTHERS_TAKE = TRANSACTION_TIMEOUT_MS / 1000 + 5  # whoever else has a transaction open ends it, or its broker does


async def first_open_offsets(kafka: KafkaClient, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The partitions in which some transaction is open, and the offset it is open from."""
    wanted = dict.fromkeys(tps, LATEST)
    stable, ends = await kafka.list_offsets(wanted, committed=True), await kafka.list_offsets(wanted)
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
    """Where the letters of a claimed partition go, but for routes."""
    counts = await kafka.partition_counts([spec.dead, spec.retry])
    return [TopicPartition(name, partition % count) for name, count in counts.items()]


async def complete_hanging(
    kafka: KafkaClient, room: TransactionalProducer, places: Iterable[TopicPartition], group: str = "", source: TopicPartition | None = None
) -> None:
    """Once a place: if something is open there, repeat how the last transaction before us ended."""
    new = [place for place in places if place not in room.checked_partitions]
    if room.last_committed is not None and (new or source):
        found = await first_open_offsets(kafka, new) if new else {}
        waits = source is not None and await has_unstable_offset(kafka, group, source)
        if found or waits:
            await room.write_markers(found, room.last_committed, group if waits else None)
    room.checked_partitions.update(new)


async def complete_hanging_in_ledger(kafka: KafkaClient, room: TransactionalProducer, tp: TopicPartition, settler: int | None = None) -> None:
    """Say it again in the ledger and wait for the transactions of others.

    What still stays open is ours, and no coordinator remembers it: what a settler published tells how it ended.
    """
    await kafka.offsets_at(tp.topic, [tp.partition])
    await complete_hanging(kafka, room, [tp])
    deadline = asyncio.get_running_loop().time() + OTHERS_TAKE
    while tp in (found := await first_open_offsets(kafka, [tp])):
        if asyncio.get_running_loop().time() > deadline:
            committed = settler is not None and await _was_published(kafka, tp, found[tp], settler)
            await room.write_markers([tp], committed)
            return
        await asyncio.sleep(0.1)


async def _was_published(kafka: KafkaClient, tp: TopicPartition, first: int, settler: int) -> bool:
    """Do the open records of the ledger stand for messages that consumers can see?"""
    end = (await kafka.offsets_at(tp.topic, [tp.partition]))[tp.partition]
    sent: dict[TopicPartition, int] = {}
    consumer = await kafka.start_consumer(isolation_level="read_uncommitted")
    try:
        async for records in reads.read_records(consumer, {tp: (first, end)}):
            for record in records[tp]:
                with translated(tp.topic):
                    key = parse_key(record.key or b"")
                    if key and (key.kind, key.settler) == ("produced", settler) and record.value is not None:
                        place = TopicPartition(key.topic, key.partition)
                        sent[place] = max(
                            sent.get(place, 0), highest_offset(key, decode_chunk(record.key, record.value))
                        )
    finally:
        await consumer.stop()
    return bool(sent) and all([await _is_visible(kafka, place, offset) for place, offset in sent.items()])


async def _is_visible(kafka: KafkaClient, tp: TopicPartition, offset: int) -> bool:
    await kafka.offsets_at(tp.topic, [tp.partition])
    if (await first_open_offsets(kafka, [tp])).get(tp, offset + 1) <= offset:
        return False
    return await reads.read_timestamp(kafka, tp.topic, tp.partition, offset) is not None
