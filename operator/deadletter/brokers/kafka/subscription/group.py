"""Where a group begins: every partition of its source gets an offset before anything is read.

So a partition without an offset is one that was added later, and all of its messages are new. A group that has started
and has no offset of any partition lost them: Kafka deletes them `offsets.retention.minutes` after its last member left.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka import errors as driver
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.errors import BrokerUnreachable, Fenced
from deadletter.brokers.group_offsets import EARLIEST, LATEST, StartPosition, offsets_lost
from deadletter.brokers.kafka import client as lines
from deadletter.brokers.kafka import hanging_transactions
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import ResumedGroup, SubscriptionSpec

_MOVING = (
    driver.GroupCoordinatorNotAvailableError,
    driver.GroupLoadInProgressError,
    driver.NotCoordinatorForGroupError,
)
_RETRY_SECONDS = 0.2
_LONGEST_PAUSE = 30.0
_MARKER_SECONDS = 0.02


async def ensure_first_offsets(line: KafkaClient, spec: SubscriptionSpec) -> None:
    """Commit the first offsets of a new group; one that has offsets is left as it is."""
    tps = await _partitions(line, spec.source)
    pause = _RETRY_SECONDS
    while not await read_committed_offsets(line, spec.group, tps):
        if spec.has_started and await has_lost_offsets(line, spec.source, spec.group):
            raise offsets_lost(spec.source, spec.group)  # seen without the id, which whoever resumes the group needs
        try:
            await _begin_new(line, spec, tps)
        except Fenced:  # another courier begins too: many that started at once would fence each other for ever
            seconds = random.uniform(1, 3) * pause  # noqa: S311  (spreads couriers, keeps no secret)
            await _wait_for_others(line, spec.group, tps, seconds)
            pause = min(4 * pause, _LONGEST_PAUSE)


async def _wait_for_others(line: KafkaClient, group: str, tps: Sequence[TopicPartition], seconds: float) -> None:
    """Return when the group has offsets, at the latest after so many seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await read_committed_offsets(line, group, tps):
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_RETRY_SECONDS)


async def _begin_new(line: KafkaClient, spec: SubscriptionSpec, tps: Sequence[TopicPartition]) -> None:
    async with _committing(line, spec.source, spec.group) as room:
        if await read_committed_offsets(line, spec.group, tps):
            return
        firsts, ends = await _bounds(line, spec.source, len(tps))
        if spec.has_started and firsts != ends:
            raise offsets_lost(spec.source, spec.group)
        starts = firsts if spec.from_earliest or spec.has_started else ends
        await _commit(line, room, spec.group, spec.source, starts)


async def has_lost_offsets(line: KafkaClient, source: str, group: str) -> bool:
    """True if the source holds messages and the group has no offset of any partition."""
    tps = await _partitions(line, source)
    if await read_committed_offsets(line, group, tps):
        return False
    firsts, ends = await _bounds(line, source, len(tps))
    return firsts != ends


async def resume_group(line: KafkaClient, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
    """Commit offsets for a lost group."""
    async with _committing(line, source, group) as room:
        if not await has_lost_offsets(line, source, group):
            return None
        firsts, ends = await _bounds(line, source, await line.partition_count(source))
        starts = {EARLIEST: firsts, LATEST: ends}.get(str(start)) or await _since(line, source, ends, int(start))
        await _commit(line, room, group, source, starts)
    passed_over = sum(starts[number] - firsts[number] for number in starts)
    return ResumedGroup(passed_over, sum(ends[number] - starts[number] for number in starts))


async def read_committed_offsets(
    line: KafkaClient, group: str, tps: Sequence[TopicPartition]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Return the group's offsets of these partitions; those without one are left out.

    aiokafka's admin client takes an answer that is an error as a whole (its coordinator still loads, a right is
    missing) for one without offsets.
    """
    deadline = asyncio.get_running_loop().time() + lines.REQUEST_TIMEOUT_MS / 1000
    while True:
        with translated(group):
            try:
                return await _fetch(line, group, tps)
            except _MOVING:
                if asyncio.get_running_loop().time() > deadline:
                    raise
        await asyncio.sleep(_RETRY_SECONDS)


async def _fetch(line: KafkaClient, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in tps:
        by_topic.setdefault(topic, []).append(partition)
    admin, client = await line.admin_client(), await line.shared_client()
    coordinator = await admin.find_coordinator(group)
    answer = await client.send(coordinator, OffsetFetchRequest(group, list(by_topic.items())))
    _check(answer.error_code)
    found = {}
    for topic, partitions in answer.topics:
        for partition, offset, metadata, code in partitions:
            _check(code)
            if offset >= 0:
                found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata)
    return found


def _check(code: int) -> None:
    """Raise the driver's error for the code of an answer."""
    if code:
        raise driver.for_code(code)


async def _partitions(line: KafkaClient, source: str) -> list[TopicPartition]:
    return [TopicPartition(source, number) for number in range(await line.partition_count(source))]


async def _bounds(line: KafkaClient, source: str, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
    numbers = range(partitions)
    return await line.offsets_at(source, numbers, lines.EARLIEST), await line.offsets_at(source, numbers)


async def _since(line: KafkaClient, source: str, ends: Mapping[int, int], ms: int) -> dict[int, int]:
    """The first offset of that time or later; the end of a partition that has none."""
    found = await line.offsets_at(source, ends, max(ms, 0))
    return {number: found[number] if found[number] >= 0 else end for number, end in ends.items()}


@asynccontextmanager
async def _committing(line: KafkaClient, source: str, group: str) -> AsyncIterator[TransactionalProducer]:
    """Open the transactional id under which the offsets of all partitions are committed at once.

    Kafka takes plain commits from others only while a group has no members, and those may belong to another source: two
    queues can share a group. Whoever opens the id fences those before, so that a late courier cannot take back what a
    faster one has committed since.
    """
    room = await TransactionalProducer.open(line, f"dlq.{source}.{group}.first")
    try:
        await hanging_transactions.complete_hanging(line, room, (), group, TopicPartition(source, 0))
        yield room
    finally:
        await room.close()


async def _commit(line: KafkaClient, room: TransactionalProducer, group: str, source: str, starts: Mapping[int, int]) -> None:
    """Commit these offsets, and wait until readers get them: a transaction's markers come after its commit."""
    offsets = {TopicPartition(source, number): OffsetAndMetadata(start, "") for number, start in starts.items()}
    async with room.transaction() as transaction:
        await transaction.commit_offsets(group, offsets)
    deadline = asyncio.get_running_loop().time() + lines.REQUEST_TIMEOUT_MS / 1000
    while not await read_committed_offsets(line, group, list(offsets)):
        if asyncio.get_running_loop().time() > deadline:
            raise BrokerUnreachable(f"{group}: the transaction of its first offsets has not ended yet")
        await asyncio.sleep(_MARKER_SECONDS)
