"""Messages packed into batches: a batch larger than its topic's limit is refused although every message fits."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2

from deadletter.brokers.errors import BoxMissing, TooLarge
from deadletter.brokers.kafka import boxes
from deadletter.brokers.kafka.line import MAX_BATCH, Line
from deadletter.brokers.values import Publication
from deadletter.core import headers, times
from deadletter.core.letters import Message

OVERHEAD = 61 + 64  # of a batch, and of its first record at most, beside keys, values and headers
PER_HEADER = 10


@dataclass(slots=True)
class Parcel:
    """Messages for one topic partition, in order, and what each needs at most in a batch."""

    topic: str
    partition: int
    messages: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def place(self) -> TopicPartition:
        """Where it goes."""
        return TopicPartition(self.topic, self.partition)

    def add(self, message: Message, size: int) -> None:
        """One more; its size is known by now, and asking for it is dear."""
        self.messages.append(message)
        self.sizes.append(size)


@dataclass(slots=True, frozen=True)
class Target:
    """What a topic takes."""

    partitions: int
    limit: int


class Targets:
    """What the topics we publish to take; asked once a topic."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._known: dict[str, Target] = {}

    async def of(self, names: Sequence[str]) -> Mapping[str, Target]:
        """All of them; BoxMissing names the first that does not exist."""
        asked = [name for name in dict.fromkeys(names) if name not in self._known]
        if asked:
            found = await boxes.describe(self._line, asked)
            for name in asked:
                if name not in found:
                    raise BoxMissing(f"{name}: it does not exist")
                limit = found[name].max_message_bytes or boxes.MAX_MESSAGE_BYTES
                self._known[name] = Target(found[name].partitions, limit)
        return self._known


def with_due_time(message: Message, due_at: int) -> Message:
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


async def pack(publications: Sequence[Publication], targets: Targets) -> list[Parcel]:
    """Publications grouped by where they go, their order kept; TooLarge before anything is sent."""
    known = await targets.of([publication.to for publication in publications])
    parcels: dict[tuple[str, int], Parcel] = {}
    for publication in publications:
        target = known[publication.to]
        where = (publication.to, choose_partition(publication, target.partitions))
        message = publication.message
        if publication.due_at is not None:
            message = with_due_time(message, publication.due_at)
        size = size_of(message)
        if size > target.limit:
            raise TooLarge(f"{publication.to}: letter {publication.letter.id} exceeds its {target.limit} bytes")
        parcel = parcels.get(where)
        if parcel is None:
            parcel = parcels[where] = Parcel(*where)
        parcel.add(message, size)
    return list(parcels.values())


def size_of(message: Message) -> int:
    """At most what the message needs in a batch of its own."""
    return message.size + OVERHEAD + PER_HEADER * len(message.headers)


async def send(producer: AIOKafkaProducer, parcels: Sequence[Parcel], targets: Targets) -> list[list[int]]:
    """Send all and await all; the offsets of each parcel's messages, in order."""
    known = await targets.of([parcel.topic for parcel in parcels])
    tasks = [asyncio.ensure_future(_send(producer, parcel, known[parcel.topic].limit)) for parcel in parcels]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _send(producer: AIOKafkaProducer, parcel: Parcel, limit: int) -> list[int]:
    acknowledged: list[tuple[int, Any]] = []
    for batch in _batches(producer, parcel, min(limit, MAX_BATCH)):
        count = batch.record_count()
        acknowledged.append((count, await producer.send_batch(batch, parcel.topic, partition=parcel.partition)))
    offsets: list[int] = []
    for count, future in acknowledged:
        base = (await future).offset
        offsets.extend(range(base, base + count))
    return offsets


def _batches(producer: AIOKafkaProducer, parcel: Parcel, limit: int) -> Any:
    batch = producer.create_batch()
    for message, size in zip(parcel.messages, parcel.sizes, strict=True):
        if batch.record_count() and batch.size() + size > limit:
            batch.close()
            yield batch
            batch = producer.create_batch()
        _append(batch, message)
    batch.close()
    yield batch


def _append(batch: Any, message: Message) -> None:
    made = batch.append(
        timestamp=message.timestamp or None, key=message.key, value=message.value, headers=list(message.headers)
    )
    if made is None:
        raise TooLarge("a message does not fit into a batch")
