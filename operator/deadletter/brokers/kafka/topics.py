"""Topics: describe, ensure, drop. What others set on a topic is never reset."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import errors as driver
from aiokafka.admin import NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.metadata import MetadataRequest

from deadletter.brokers.errors import (
    BoxAppeared,
    BoxConflict,
    BoxMissing,
    BrokerError,
    BrokerUnreachable,
    NotAuthorised,
)
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import check_error_code, translated
from deadletter.brokers.kafka.reassignments import Assignment, plan_added_replicas, reassign_partitions
from deadletter.brokers.kafka.topic_metadata import TopicMetadataRequest, read_topics
from deadletter.brokers.types import BoxState, ServerInfo
from deadletter.core.box_spec import BoxSpec

DYNAMIC = 1  # config_source of a config that was set on the topic itself
MAX_MESSAGE_BYTES = 1_048_588
LEDGER_PARTITIONS = 3
LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "max.compaction.lag.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
# Configs of the dead topic that its ledger does not take over: they delete, limit or age records, or belong to one
# topic's partitions. A codec of the dead topic must not make the ledger unreadable.
NOT_CARRIED = ("cleanup.", "retention.", "segment.", "delete.", "min.compaction.", "max.compaction.", "min.cleanable.",
               "message.", "max.message.", "compression.", "remote.", "local.", "leader.replication.",
               "follower.replication.")  # fmt: skip
MIN_INSYNC = "min.insync.replicas"
Configs = Mapping[str, Mapping[str, tuple[str, int]]]  # topic -> key -> value and source
NOT_YET = (driver.UnknownTopicOrPartitionError, driver.LeaderNotAvailableError)
VISIBLE_TIMEOUT = 60.0
SHOWN_TIMEOUT = 20.0
BROKER_TIMEOUT = 2.0  # of one broker that others can stand in for


async def describe_server(line: KafkaClient) -> ServerInfo:
    """Who answers."""
    answer = await line.send_to_any_broker(MetadataRequest([]))
    return ServerInfo("Kafka", _version(await line.shared_client()), len(answer.brokers), True, str(answer.cluster_id))


def _version(client: Any) -> str:
    """Kafka does not tell its version; the highest transaction API it speaks tells the generation."""
    connection = next(iter(client._conns.values()), None)  # noqa: SLF001  (no public way to the API versions)
    versions = getattr(connection, "_versions", None) or {}
    return "4" if versions.get(26, (0, 0))[1] >= 5 else "3" if versions.get(1, (0, 0))[1] >= 12 else "2"


async def describe_topics(line: KafkaClient, names: Sequence[str]) -> dict[str, BoxState]:
    """The topics among `names` that exist."""
    counts = await line.partition_counts(names)
    configs = await _configs(line, list(counts))
    return {name: _state(name, count, configs.get(name, {}), line.topic_id(name)) for name, count in counts.items()}


def _state(name: str, partitions: int, config: Mapping[str, tuple[str, int]], topic_id: str = "") -> BoxState:
    def number(key: str) -> int | None:
        return int(config[key][0]) if key in config else None

    policy = config.get("cleanup.policy", ("", 0))[0]
    limit = number("max.message.bytes")
    return BoxState(name, partitions, number("retention.ms"), "compact" in policy, limit, topic_id)


async def _configs(line: KafkaClient, names: Sequence[str]) -> dict[str, dict[str, tuple[str, int]]]:
    """Value and source of every config of these topics; one request. Without the right to read them: none."""
    if not names:
        return {}
    admin = await line.admin_client()
    with translated("the broker"):
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for answer in answers:
        for code, _, _, name, entries in answer.resources:
            if not code:
                found[name] = {entry[0]: (entry[1], entry[3]) for entry in entries if entry[1] is not None}
    return found


async def ensure_topic(line: KafkaClient, spec: BoxSpec) -> BoxState:
    """Make the topic as asked, or bring it there."""
    found = (await describe_topics(line, [spec.name])).get(spec.name)
    if spec.adopt:
        if found is None:
            raise BoxMissing(f"{spec.name}: it does not exist, and an adopted topic is never made")
        return found
    is_created = found is None and await _create(line, spec)
    if spec.must_be_new and not is_created:
        raise BoxAppeared(f"{spec.name}: others created it at the same moment")
    if found is not None:
        if spec.partitions is not None and spec.partitions < found.partitions:
            raise BoxConflict(
                f"{spec.name}: it has {found.partitions} partitions; Kafka cannot shrink to {spec.partitions}"
            )
        if spec.partitions is not None and spec.partitions > found.partitions:
            await _grow(line, spec.name, spec.partitions)
        await _configure(line, spec)
    return await _seen(line, spec)


def _wanted(spec: BoxSpec) -> dict[str, str]:
    own = {} if spec.retention_ms is None else {"retention.ms": str(spec.retention_ms)}
    return {**own, **spec.config}


async def _create(line: KafkaClient, spec: BoxSpec) -> bool:
    """Create the topic and wait until all brokers show it; False if it exists already."""
    is_created = True
    admin = await line.admin_client()
    partitions = spec.partitions or int(await _broker_default(line, "num.partitions", "1"))
    copies = spec.replication_factor or int(await _broker_default(line, "default.replication.factor", "1"))
    with translated(spec.name):
        answer = await admin.create_topics([NewTopic(spec.name, partitions, copies, topic_configs=_wanted(spec))])
        for _, code, message in answer.topic_errors:
            kind = driver.for_code(code)
            if kind in (driver.InvalidConfigurationError, driver.InvalidReplicationFactorError,
                        driver.InvalidPartitionsError, driver.InvalidTopicError):  # fmt: skip
                raise BoxConflict(f"{spec.name}: {message}")
            is_created = kind is not driver.TopicAlreadyExistsError
            if is_created:
                check_error_code(code, spec.name)
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        if await _is_shown_by_all(line, spec.name):
            break
        await asyncio.sleep(0.05)
    return is_created


async def _is_shown_by_all(line: KafkaClient, name: str) -> bool:
    """True if each broker that answers soon shows the topic; the next question may go to any of them."""
    client = await line.shared_client()

    async def is_shown_by(node: int) -> bool:
        try:
            with translated(name):
                request = client.send(node, TopicMetadataRequest([name]))
                answer = await asyncio.wait_for(request, BROKER_TIMEOUT)
        except BrokerUnreachable:
            return True
        return not any(driver.for_code(topic.error_code) in NOT_YET for topic in read_topics(answer))

    return all(await asyncio.gather(*(is_shown_by(broker.nodeId) for broker in client.cluster.brokers())))


async def _broker_default(line: KafkaClient, key: str, otherwise: str) -> str:
    client, admin = await line.shared_client(), await line.admin_client()
    node = client.get_random_node()
    with translated("the broker"):
        resource = ConfigResource(ConfigResourceType.BROKER, str(node), {key: None})
        for answer in await admin.describe_configs([resource]):
            for _, _, _, _, entries in answer.resources:
                return next((entry[1] for entry in entries if entry[0] == key and entry[1]), otherwise)
    return otherwise


async def _grow(line: KafkaClient, name: str, partitions: int) -> None:
    admin = await line.admin_client()
    with translated(name):
        await admin.create_partitions({name: NewPartitions(partitions)})


async def _configure(line: KafkaClient, spec: BoxSpec) -> None:
    """Kafka's old request resets what it does not name: read what is set on the topic, merge, write."""
    wanted = _wanted(spec)
    config = (await _configs(line, [spec.name])).get(spec.name)
    if config is None:
        raise NotAuthorised(f"{spec.name}: the broker does not let us read its configs")
    if _holds(config, wanted):
        return
    merged = {key: value for key, (value, source) in config.items() if source == DYNAMIC} | wanted
    admin = await line.admin_client()
    with translated(spec.name):
        answers = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, spec.name, merged)])
        for answer in answers:
            for code, message, *_ in answer.resources:
                if driver.for_code(code) in (driver.InvalidConfigurationError, driver.InvalidRequestError):
                    raise BoxConflict(f"{spec.name}: {message}")
                check_error_code(code, spec.name)

    await _shown(line, spec.name, wanted)


def _holds(config: Mapping[str, tuple[str, int]], wanted: Mapping[str, str]) -> bool:
    return all(config.get(key, ("", 0))[0] == value for key, value in wanted.items())


async def _shown(line: KafkaClient, name: str, wanted: Mapping[str, str]) -> None:
    """A broker shows a config a moment after it took it; one that it spells otherwise is not waited for long."""
    deadline = asyncio.get_running_loop().time() + SHOWN_TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        if _holds((await _configs(line, [name])).get(name, {}), wanted):
            return
        await asyncio.sleep(0.05)


async def _seen(line: KafkaClient, spec: BoxSpec) -> BoxState:
    """Metadata lags behind what was just made: wait until the broker shows it with leaders."""
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT
    while True:
        found = (await describe_topics(line, [spec.name])).get(spec.name)
        if (
            found is not None
            and found.partitions >= (spec.partitions or 1)
            and line.has_leaders(spec.name, found.partitions)
        ):
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise BoxMissing(f"{spec.name}: it was made, but the broker does not show it yet")
        await asyncio.sleep(0.05)


async def ensure_ledger(line: KafkaClient, name: str, dead: str) -> None:
    """Create the ledger unless it exists, with the replication factor and the configs of its dead topic."""
    counts = await line.partition_counts([name, dead])
    if name in counts:
        return
    copies = _fewest(line.replicas(dead, counts[dead])) if dead in counts else None
    spec = BoxSpec(name, LEDGER_PARTITIONS, copies, config=await _ledger_config(line, dead))
    await _create(line, spec)
    await _seen(line, spec)


async def _ledger_config(line: KafkaClient, dead: str) -> dict[str, str]:
    """Return the configs set on the dead topic that do no harm to a ledger, and those every ledger needs."""
    config = (await _configs(line, [dead])).get(dead, {})
    carried = {key: value for key, (value, source) in config.items() if source == DYNAMIC}
    return {key: value for key, value in carried.items() if not key.startswith(NOT_CARRIED)} | LEDGER_CONFIG


async def match_ledger_replication(line: KafkaClient, name: str, dead: str) -> str:
    """Bring an existing ledger to the replicas and min.insync.replicas of its dead topic.

    Returns what is missing if the broker refuses it, as a sentence without a period; else nothing. New replicas are
    copied after this returns, so min.insync.replicas follows with a later call, when they are in sync.
    """
    counts = await line.partition_counts_or_errors([name, dead])
    have, want = counts.get(name), counts.get(dead)
    if not isinstance(have, int) or not isinstance(want, int):
        return ""
    replicas, wanted = line.replicas(name, have), line.replicas(dead, want)
    missing = f"{name} has {_fewest(replicas)} of {_fewest(wanted)} replicas"
    more = plan_added_replicas(replicas, wanted)
    try:
        configs = await _configs(line, [name, dead])
        if name not in configs:
            return f"{missing}, and the broker does not let us read its configs" if more else ""
        if more and _state(name, have, configs[name]).compacted:  # else it is not a ledger of ours
            await reassign_partitions(line, name, more)
        elif not more:
            missing = f"{name} has a lower {MIN_INSYNC} than {dead}"
            await _match_min_insync(line, name, configs, dead, line.in_sync_replicas(name, have))
    except BrokerUnreachable:
        raise
    except BrokerError as error:
        return f"{missing}, and the broker refuses to raise it ({type(error).__name__})"
    return ""


async def _match_min_insync(line: KafkaClient, name: str, configs: Configs, dead: str, in_sync: int) -> None:
    has, wanted = (configs.get(one, {}).get(MIN_INSYNC, ("1", 0))[0] for one in (name, dead))
    if int(has) < int(wanted) <= in_sync:
        await _configure(line, BoxSpec(name, config={MIN_INSYNC: wanted}))


def _fewest(replicas: Assignment) -> int:
    return min(len(brokers) for brokers in replicas.values())


async def delete_topics(line: KafkaClient, names: Sequence[str]) -> None:
    """Delete topics; those that do not exist are fine. Returns when the broker no longer shows them."""
    present = list(await line.partition_counts(names))
    if not present:
        return
    admin = await line.admin_client()
    with translated("the broker"):
        answer = await admin.delete_topics(present)
        for name, code in answer.topic_error_codes:
            if driver.for_code(code) is not driver.UnknownTopicOrPartitionError:
                check_error_code(code, name)
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        if not await line.partition_counts(present):
            return
        await asyncio.sleep(0.05)
