"""Messages packed into batches: a batch larger than its topic's limit is refused although every message fits."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from deadletter.brokers.errors import BoxMissing, TooLarge
from deadletter.brokers.kafka import topics
from deadletter.brokers.kafka.client import MAX_BATCH, KafkaClient
from deadletter.brokers.types import Publication
from deadletter.core import headers, times
from deadletter.core.letters import Message


class RecordBatch(BatchBuilder):  # type: ignore[misc]
    """The driver's batch, filled without its detour over serializers."""

    def add(self, message: Message) -> bool:
        """Lay it in, if it fits."""
        at, headers_ = self._relative_offset, list(message.headers)
        made = self._builder.append(at, message.timestamp or None, message.key, message.value, headers_) is not None
        self._relative_offset += made
        return made


@dataclass(slots=True)
class PartitionBatches:
    """Messages for one topic partition, in order, in batches that its topic takes."""

    topic: str
    partition: int
    batches: list[RecordBatch]

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it goes."""
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True, frozen=True)
class TopicLimit:
    """What a topic takes."""

    partitions: int
    max_batch_bytes: int


class TopicLimits:
    """What the topics we publish to take; asked once a topic."""

    def __init__(self, line: KafkaClient) -> None:
        self._line = line
        self._known: dict[str, TopicLimit] = {}

    async def look_up(self, names: Sequence[str]) -> Mapping[str, TopicLimit]:
        """All of them; BoxMissing names the first that does not exist."""
        asked = [name for name in dict.fromkeys(names) if name not in self._known]
        if asked:
            found = await topics.describe_topics(self._line, asked)
            for name in asked:
                if name not in found:
                    raise BoxMissing(f"{name}: it does not exist")
                limit = found[name].max_message_bytes or topics.MAX_MESSAGE_BYTES
                self._known[name] = TopicLimit(found[name].partitions, limit)
        return self._known


def set_due_time(message: Message, due_at: int) -> Message:
    """The message as it lies in the retry box."""
    kept = tuple(pair for pair in message.headers if pair[0] != headers.DUE_AT)
    due = (headers.DUE_AT, times.render(due_at).encode())
    return Message(message.key, message.value, (*kept, due), message.timestamp)


def choose_partition(publication: Publication, partitions: int) -> int:
    """The one asked for, else by key as Kafka's own clients do, else by the letter's place."""
    if publication.partition is not None:
        if not 0 <= publication.partition < partitions:
            raise BoxMissing(f"{publication.to}: it has no partition {publication.partition}")
        return publication.partition
    if publication.message.key is not None:
        return int((murmur2(publication.message.key) & 0x7FFFFFFF) % partitions)
    return publication.letter.partition % partitions


async def pack_publications(publications: Sequence[Publication], targets: TopicLimits, in_transaction: bool = True) -> list[PartitionBatches]:
    """Publications grouped by where they go, their order kept; TooLarge before anything is sent."""
    known = await targets.look_up([publication.to for publication in publications])
    grouped: dict[tuple[str, int], list[Message]] = {}
    for publication in publications:
        where = (publication.to, choose_partition(publication, known[publication.to].partitions))
        message = publication.message
        if publication.due_at is not None:
            message = set_due_time(message, publication.due_at)
        grouped.setdefault(where, []).append(message)
    return [await pack_messages(*where, messages, targets, in_transaction) for where, messages in grouped.items()]


async def pack_messages(
    topic: str, partition: int, messages: Iterable[Message], targets: TopicLimits, in_transaction: bool = True
) -> PartitionBatches:
    """Messages for one topic partition; only the first of a batch can be too large for its topic."""
    limit = (await targets.look_up([topic]))[topic].max_batch_bytes
    batches: list[RecordBatch] = []
    for message in messages:
        if batches and batches[-1].add(message):
            continue
        batches.append(RecordBatch(min(limit, MAX_BATCH), 0, is_transactional=in_transaction))
        batches[-1].add(message)
        if batches[-1].size() > limit:
            raise TooLarge(f"{topic}: a letter exceeds its {limit} bytes")
    return PartitionBatches(topic, partition, batches)


async def send_batches(producer: AIOKafkaProducer, parcels: Sequence[PartitionBatches]) -> list[list[int]]:
    """Send all and await all; the offsets of each parcel's messages, in order."""
    tasks = [asyncio.ensure_future(_send(producer, parcel)) for parcel in parcels]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _send(producer: AIOKafkaProducer, parcel: PartitionBatches) -> list[int]:
    acknowledged: list[tuple[int, Any]] = []
    for batch in parcel.batches:
        count = batch.record_count()
        acknowledged.append((count, await producer.send_batch(batch, parcel.topic, partition=parcel.partition)))
    offsets: list[int] = []
    for count, future in acknowledged:
        base = (await future).offset
        offsets.extend(range(base, base + count))
    return offsets
