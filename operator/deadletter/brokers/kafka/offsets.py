"""Ask partition leaders for offsets: start, end, last stable offset, or the offset of a time (ListOffsets)."""

import asyncio
from collections.abc import Iterable, Mapping

from aiokafka import TopicPartition
from aiokafka import errors as driver
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.offset import OffsetRequest

from deadletter.brokers.errors import BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.errors import translate, translated

EARLIEST, LATEST = -2, -1  # special times of the protocol
MAX_PARTITIONS_PER_REQUEST = 1_000  # a response is parsed without a break, which holds up the event loop
RETRY_INTERVAL_S = 0.1


async def list_offsets(
    kafka: KafkaClient, times: Mapping[TopicPartition, int], read_committed: bool = False
) -> dict[TopicPartition, int | BrokerError]:
    """Return the offset of each partition at EARLIEST, LATEST or a time in ms, with a few requests per broker.

    A leader that cannot be reached is the error of its partitions. With `read_committed`, LATEST is the last stable
    offset. Leaders must be known from an earlier metadata request.
    """
    client = await kafka.shared_client()
    found: dict[TopicPartition, int | BrokerError] = {}
    wanted = list(times.items())
    for first in range(0, len(wanted), MAX_PARTITIONS_PER_REQUEST):
        by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for (topic, partition), time in wanted[first : first + MAX_PARTITIONS_PER_REQUEST]:
            leader = kafka.metadata.leader(TopicPartition(topic, partition))
            by_leader.setdefault(leader, {}).setdefault(topic, []).append((partition, time))
        for leader, topics in by_leader.items():
            found |= await _list_offsets_of_leader(client, leader, topics, read_committed)
    return found


async def _list_offsets_of_leader(
    client: AIOKafkaClient, leader: int, topics: Mapping[str, list[tuple[int, int]]], read_committed: bool
) -> dict[TopicPartition, int | BrokerError]:
    tps = [TopicPartition(topic, partition) for topic, wanted in topics.items() for partition, _ in wanted]
    if leader == -1:
        return dict.fromkeys(tps, BrokerUnreachable("a partition has no leader"))
    try:
        with translated("the broker"):
            response = await client.send(leader, OffsetRequest(-1, int(read_committed), list(topics.items())))
    except BrokerError as error:
        return dict.fromkeys(tps, error)
    return {
        TopicPartition(topic, partition): translate(driver.for_code(code)(), topic) if code else offset
        for topic, partitions in response.topics
        for partition, code, _, offset, *_ in partitions
    }


async def list_offsets_until(
    kafka: KafkaClient, times: Mapping[TopicPartition, int], deadline: float, read_committed: bool = False
) -> dict[TopicPartition, int | BrokerError]:
    """Do the same, and ask again for partitions whose leader moves until this time of the event loop's clock."""
    found = await list_offsets(kafka, times, read_committed)
    while asyncio.get_running_loop().time() < deadline:
        moving = {tp: times[tp] for tp, offset in found.items() if isinstance(offset, BrokerUnreachable)}
        if not moving:
            break
        await asyncio.sleep(RETRY_INTERVAL_S)
        await kafka.partition_counts_or_errors([tp.topic for tp in moving])
        found |= await list_offsets(kafka, moving, read_committed)
    return found


async def start_offsets(kafka: KafkaClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the offset of the first message that each partition still holds."""
    return await offsets_at(kafka, topic, partitions, EARLIEST)


async def end_offsets(kafka: KafkaClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the end offset (high watermark) of each partition, open transactions included."""
    return await offsets_at(kafka, topic, partitions, LATEST)


async def offsets_at(kafka: KafkaClient, topic: str, partitions: Iterable[int], time: int) -> dict[int, int]:
    """Return the offset of each partition at a time; wait for a missing leader, raise any other error."""
    times = {TopicPartition(topic, partition): time for partition in partitions}
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    while True:
        found = await list_offsets(kafka, times) if kafka.metadata.knows_leaders_of(times) else {}
        error = next((one for one in found.values() if isinstance(one, BrokerError)), None)
        if found and error is None:
            return {tp.partition: offset for tp, offset in found.items() if isinstance(offset, int)}
        is_late = asyncio.get_running_loop().time() > deadline
        if error is not None and (is_late or not isinstance(error, BrokerUnreachable)):
            raise error
        if topic not in await kafka.partition_counts([topic]) or is_late:
            raise BoxMissing(f"topic {topic} does not exist")
        if error is not None:
            await asyncio.sleep(RETRY_INTERVAL_S)
