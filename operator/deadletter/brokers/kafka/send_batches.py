"""Pack messages into record batches that their topics accept, and send them.

The driver gathers messages up to a size of its own; a broker refuses a batch larger than its topic's limit although
every message fits.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from deadletter.brokers.errors import BoxMissing, TooLarge
from deadletter.brokers.kafka import topics
from deadletter.brokers.kafka.client import MAX_BATCH_BYTES, KafkaClient
from deadletter.brokers.retry_headers import set_due_time
from deadletter.brokers.types import Publication
from deadletter.core.letters import Message


class RecordBatch(BatchBuilder):  # type: ignore[misc]
    """The driver's batch, filled without its serializers."""

    def add(self, message: Message) -> bool:
        """Add a message; return False if the batch has no space for it."""
        index, headers = self._relative_offset, list(message.headers)
        metadata = self._builder.append(index, message.timestamp or None, message.key, message.value, headers)
        self._relative_offset += metadata is not None
        return metadata is not None


@dataclass(slots=True)
class PartitionBatches:
    """The batches for one topic partition, in order."""

    topic: str
    partition: int
    batches: list[RecordBatch]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition they are sent to."""
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True, frozen=True)
class TopicLimit:
    """The number of partitions of a topic, and the largest batch that it accepts."""

    partitions: int
    max_batch_bytes: int


class TopicLimits:
    """The limits of the topics that are published to, requested once for each topic."""

    def __init__(self, kafka: KafkaClient) -> None:
        self._kafka = kafka
        self._known: dict[str, TopicLimit] = {}

    async def look_up(self, names: Sequence[str]) -> Mapping[str, TopicLimit]:
        """Return the limits of these topics; raise BoxMissing for the first that does not exist."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._known]
        if unknown:
            found = await topics.describe_topics(self._kafka, unknown)
            for name in unknown:
                if name not in found:
                    raise BoxMissing(f"topic {name} does not exist")
                max_bytes = found[name].max_message_bytes or topics.MAX_MESSAGE_BYTES
                self._known[name] = TopicLimit(found[name].partitions, max_bytes)
        return self._known


def choose_partition(publication: Publication, partitions: int) -> int:
    """Return the partition asked for, else that of the key as Kafka's own clients compute it, else the letter's."""
    if publication.partition is not None:
        if not 0 <= publication.partition < partitions:
            raise BoxMissing(f"topic {publication.to} has no partition {publication.partition}")
        return publication.partition
    if publication.message.key is not None:
        return int((murmur2(publication.message.key) & 0x7FFFFFFF) % partitions)
    return publication.letter.partition % partitions


async def pack_publications(
    publications: Sequence[Publication], limits: TopicLimits, in_transaction: bool = True
) -> list[PartitionBatches]:
    """Pack publications by topic partition in their order; raise TooLarge before anything is sent."""
    known = await limits.look_up([publication.to for publication in publications])
    grouped: dict[tuple[str, int], list[Message]] = {}
    for publication in publications:
        target = (publication.to, choose_partition(publication, known[publication.to].partitions))
        message = publication.message
        if publication.due_at is not None:
            message = set_due_time(message, publication.due_at)
        grouped.setdefault(target, []).append(message)
    return [await pack_messages(*target, messages, limits, in_transaction) for target, messages in grouped.items()]


async def pack_messages(
    topic: str, partition: int, messages: Iterable[Message], limits: TopicLimits, in_transaction: bool = True
) -> PartitionBatches:
    """Pack messages for one topic partition; raise TooLarge if one exceeds the limit of the topic.

    A message that does not fit starts a new batch, so only the first message of a batch can exceed the limit.
    """
    max_bytes = (await limits.look_up([topic]))[topic].max_batch_bytes
    batches: list[RecordBatch] = []
    for message in messages:
        if batches and batches[-1].add(message):
            continue
        batches.append(RecordBatch(min(max_bytes, MAX_BATCH_BYTES), 0, is_transactional=in_transaction))
        batches[-1].add(message)
        if batches[-1].size() > max_bytes:
            raise TooLarge(f"a letter exceeds max.message.bytes of topic {topic}, {max_bytes}")
    return PartitionBatches(topic, partition, batches)


async def send_batches(producer: AIOKafkaProducer, packed: Sequence[PartitionBatches]) -> list[list[int]]:
    """Send all batches, wait for every acknowledgement, and return the offsets of the messages in order."""
    tasks = [asyncio.ensure_future(_send_partition(producer, one)) for one in packed]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _send_partition(producer: AIOKafkaProducer, packed: PartitionBatches) -> list[int]:
    acknowledgements: list[tuple[int, Any]] = []
    for batch in packed.batches:
        count = batch.record_count()
        future = await producer.send_batch(batch, packed.topic, partition=packed.partition)
        acknowledgements.append((count, future))
    offsets: list[int] = []
    for count, future in acknowledgements:
        base = (await future).offset
        offsets.extend(range(base, base + count))
    return offsets
