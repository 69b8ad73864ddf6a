"""The consumer group of a subscription: its members, its committed offsets, and its first offsets.

Every partition of the source gets an offset before anything is read. So a partition without an offset was added later,
and all of its messages are new. A group that has started and has no offset of any partition lost them: Kafka deletes
them `offsets.retention.minutes` after its last member left.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as driver
from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.structs import OffsetAndMetadata

from deadletter.brokers.errors import BrokerUnreachable, Fenced
from deadletter.brokers.kafka import hanging_transactions, offsets
from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.errors import raise_driver_error, translated
from deadletter.brokers.kafka.subscription.offset_metadata import decode
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.lost_offsets import EARLIEST, LATEST, StartPosition, offsets_lost_error
from deadletter.brokers.types import ResumedGroup, SubscriptionSpec

HEARTBEAT_MS = 1_000
RETRY_INTERVAL_S = 0.2
MAX_PAUSE_S = 30.0
MARKER_POLL_INTERVAL_S = 0.02
_COORDINATOR_MOVING = (
    driver.GroupCoordinatorNotAvailableError,
    driver.GroupLoadInProgressError,
    driver.NotCoordinatorForGroupError,
    driver.NodeNotReadyError,
    driver.KafkaConnectionError,
)


def is_assigned(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool:
    """True if the partition is assigned to the consumer as far as it knows, which may be out of date."""
    return tp in consumer.assignment()


async def confirm_assignment(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    """Ask the group whether the partition is still assigned to the consumer; raise Fenced if it is not.

    Transactions of aiokafka carry no generation of the group, so a courier that was removed from the group could open
    a partition's transactional id once more and fence the courier that has it now. So this is called before an id is
    opened.
    """
    with translated(tp.topic):
        is_member = await consumer._coordinator._do_heartbeat()  # noqa: SLF001  (aiokafka has no other way to ask)
    if not is_member or not is_assigned(consumer, tp):
        raise Fenced(f"{tp.topic}: partition {tp.partition} is assigned to another courier")


async def read_lags(kafka: KafkaClient, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return how many messages of each partition the group has not taken yet, where both ends are known."""
    wanted = list(tps)
    if not wanted:
        return {}
    ends = await offsets.list_offsets(kafka, dict.fromkeys(wanted, offsets.LATEST))
    found = {}
    for tp, committed in (await read_committed_offsets(kafka, group, wanted)).items():
        end = ends.get(tp)
        if isinstance(end, int):
            highest, _ = decode(committed.offset, committed.metadata or "")
            found[tp] = max(0, end - highest - 1)
    return found


async def ensure_first_offsets(kafka: KafkaClient, spec: SubscriptionSpec) -> None:
    """Commit the first offsets of a new group; leave a group that has offsets as it is."""
    tps = await _partitions(kafka, spec.source)
    pause = RETRY_INTERVAL_S
    while not await read_committed_offsets(kafka, spec.group, tps):
        if spec.has_started and await has_lost_offsets(kafka, spec.source, spec.group):
            # Raised before the transactional id is opened: that would fence whoever resumes the group.
            raise offsets_lost_error(spec.source, spec.group)
        try:
            await _commit_first_offsets(kafka, spec, tps)
        except Fenced:  # another courier starts too; many that start at once would fence each other without end
            seconds = random.uniform(1, 3) * pause  # noqa: S311  (spreads couriers, keeps no secret)
            await _wait_for_others(kafka, spec.group, tps, seconds)
            pause = min(4 * pause, MAX_PAUSE_S)


async def _wait_for_others(kafka: KafkaClient, group: str, tps: Sequence[TopicPartition], seconds: float) -> None:
    """Return when the group has offsets, or after so many seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await read_committed_offsets(kafka, group, tps):
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(RETRY_INTERVAL_S)


async def _commit_first_offsets(kafka: KafkaClient, spec: SubscriptionSpec, tps: Sequence[TopicPartition]) -> None:
    async with _open_group_producer(kafka, spec.source, spec.group) as producer:
        if await read_committed_offsets(kafka, spec.group, tps):
            return
        firsts, ends = await _start_and_end_offsets(kafka, spec.source, len(tps))
        if spec.has_started and firsts != ends:
            raise offsets_lost_error(spec.source, spec.group)
        starts = firsts if spec.from_earliest or spec.has_started else ends
        await _commit(kafka, producer, spec.group, spec.source, starts)


async def has_lost_offsets(kafka: KafkaClient, source: str, group: str) -> bool:
    """True if the source holds messages and the group has no offset of any partition."""
    tps = await _partitions(kafka, source)
    if await read_committed_offsets(kafka, group, tps):
        return False
    firsts, ends = await _start_and_end_offsets(kafka, source, len(tps))
    return firsts != ends


async def resume_group(kafka: KafkaClient, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
    """Commit offsets for a group that lost them; return None if it has not."""
    async with _open_group_producer(kafka, source, group) as producer:
        if not await has_lost_offsets(kafka, source, group):
            return None
        firsts, ends = await _start_and_end_offsets(kafka, source, await kafka.partition_count(source))
        starts = {EARLIEST: firsts, LATEST: ends}.get(str(start)) or await _since(kafka, source, ends, int(start))
        await _commit(kafka, producer, group, source, starts)
    passed_over = sum(starts[number] - firsts[number] for number in starts)
    return ResumedGroup(passed_over, sum(ends[number] - starts[number] for number in starts))


async def read_committed_offsets(
    kafka: KafkaClient, group: str, tps: Sequence[TopicPartition]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Return the group's offsets of these partitions; omit partitions without one.

    aiokafka's admin client takes a response that is an error as a whole (the coordinator is still loading, a right is
    missing) for one without offsets, so the request is sent here.
    """
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    while True:
        with translated(group):
            try:
                return await _fetch_offsets(kafka, group, tps)
            except _COORDINATOR_MOVING:
                if asyncio.get_running_loop().time() > deadline:
                    raise
        await asyncio.sleep(RETRY_INTERVAL_S)


async def _fetch_offsets(
    kafka: KafkaClient, group: str, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in tps:
        by_topic.setdefault(topic, []).append(partition)
    found_coordinator = await kafka.send_to_any_broker(FindCoordinatorRequest(group, CoordinationType.GROUP))
    raise_driver_error(found_coordinator.error_code)
    client = await kafka.shared_client()
    response = await client.send(found_coordinator.coordinator_id, OffsetFetchRequest(group, list(by_topic.items())))
    raise_driver_error(response.error_code)
    found = {}
    for topic, partitions in response.topics:
        for partition, offset, metadata, code in partitions:
            raise_driver_error(code)
            if offset >= 0:
                found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata)
    return found


async def _partitions(kafka: KafkaClient, source: str) -> list[TopicPartition]:
    return [TopicPartition(source, number) for number in range(await kafka.partition_count(source))]


async def _start_and_end_offsets(
    kafka: KafkaClient, source: str, partitions: int
) -> tuple[dict[int, int], dict[int, int]]:
    numbers = range(partitions)
    return await offsets.start_offsets(kafka, source, numbers), await offsets.end_offsets(kafka, source, numbers)


async def _since(kafka: KafkaClient, source: str, ends: Mapping[int, int], ms: int) -> dict[int, int]:
    """Return the first offset of that time or later; the end of a partition that has none."""
    found = await offsets.offsets_at(kafka, source, ends, max(ms, 0))
    return {number: found[number] if found[number] >= 0 else end for number, end in ends.items()}


@asynccontextmanager
async def _open_group_producer(kafka: KafkaClient, source: str, group: str) -> AsyncIterator[TransactionalProducer]:
    """Open the transactional id under which the offsets of all partitions are committed at once.

    Kafka takes plain commits of a client that is not a member only while the group has no members, and those may belong
    to another source: two queues can share a group. Whoever opens the id fences those before, so that a late courier
    cannot take back what a faster one has committed since.
    """
    producer = await TransactionalProducer.open(kafka, f"dlq.{source}.{group}.first")
    try:
        await hanging_transactions.complete_hanging(kafka, producer, (), group, TopicPartition(source, 0))
        yield producer
    finally:
        await producer.close()


async def _commit(
    kafka: KafkaClient, producer: TransactionalProducer, group: str, source: str, starts: Mapping[int, int]
) -> None:
    """Commit these offsets, and wait until they can be read: the markers of a transaction follow its commit."""
    first_offsets = {TopicPartition(source, number): OffsetAndMetadata(start, "") for number, start in starts.items()}
    async with producer.transaction() as transaction:
        await transaction.commit_offsets(group, first_offsets)
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    while not await read_committed_offsets(kafka, group, list(first_offsets)):
        if asyncio.get_running_loop().time() > deadline:
            raise BrokerUnreachable(f"group {group}: the transaction of its first offsets has not ended yet")
        await asyncio.sleep(MARKER_POLL_INTERVAL_S)
