"""Describe, create, configure and delete topics; a config that others set on a topic is never reset."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import errors as driver
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.metadata import MetadataRequest

from deadletter.brokers.errors import BoxAppeared, BoxConflict, BoxMissing, BrokerUnreachable, NotAuthorised
from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.errors import check_error_code, translated
from deadletter.brokers.kafka.topic_metadata import TopicMetadataRequest, read_topics
from deadletter.brokers.types import BoxState, ServerInfo
from deadletter.core.box_types import BoxSpec

SET_ON_TOPIC = 1  # config_source DYNAMIC_TOPIC_CONFIG of the protocol
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default of max.message.bytes
FETCH, END_TXN = 1, 26  # API keys
VISIBLE_TIMEOUT_S = 60.0
CONFIG_TIMEOUT_S = 20.0
BROKER_TIMEOUT_S = 2.0  # of one broker among several
POLL_INTERVAL_S = 0.05
NOT_YET_VISIBLE = (driver.UnknownTopicOrPartitionError, driver.LeaderNotAvailableError)
TopicConfig = Mapping[str, tuple[str, int]]  # key -> value and source


async def describe_server(kafka: KafkaClient) -> ServerInfo:
    """Return version, size and id of the cluster."""
    response = await kafka.send_to_any_broker(MetadataRequest([]))
    version = _guess_version(await kafka.shared_client())
    return ServerInfo("Kafka", version, len(response.brokers), True, str(response.cluster_id))


def _guess_version(client: Any) -> str:
    """Return the major version by the highest versions of transaction requests: a broker does not tell its own."""
    connection = next(iter(client._conns.values()), None)  # noqa: SLF001  (no public way to the API versions)
    versions = getattr(connection, "_versions", None) or {}
    return "4" if versions.get(END_TXN, (0, 0))[1] >= 5 else "3" if versions.get(FETCH, (0, 0))[1] >= 12 else "2"


async def send_to_controller(kafka: KafkaClient, request: Any) -> Any:
    """Send a request once, to the broker that the others name as the controller, and return its response."""
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    while True:
        controller = (await kafka.send_to_any_broker(MetadataRequest([]))).controller_id
        client = await kafka.shared_client()
        with translated("the controller"):
            if await client.ready(controller) or asyncio.get_running_loop().time() > deadline:
                return await client.send(controller, request)
        await asyncio.sleep(POLL_INTERVAL_S)


async def describe_topics(kafka: KafkaClient, names: Sequence[str]) -> dict[str, BoxState]:
    """Return the state of each topic that exists."""
    counts = await kafka.partition_counts(names)
    configs = await read_configs(kafka, list(counts))
    return {
        name: topic_state(name, count, configs.get(name, {}), kafka.metadata.topic_id(name))
        for name, count in counts.items()
    }


def topic_state(name: str, partitions: int, config: TopicConfig, topic_id: str = "") -> BoxState:
    """Return the state of a topic with these configs."""

    def number(key: str) -> int | None:
        return int(config[key][0]) if key in config else None

    policy = config.get("cleanup.policy", ("", 0))[0]
    max_bytes = number("max.message.bytes")
    return BoxState(name, partitions, number("retention.ms"), "compact" in policy, max_bytes, topic_id)


async def read_configs(kafka: KafkaClient, names: Sequence[str]) -> dict[str, dict[str, tuple[str, int]]]:
    """Return value and source of every config of each topic in one request; omit topics without the right to read."""
    if not names:
        return {}
    wanted = [(ConfigResourceType.TOPIC, name, None) for name in names]
    response = await kafka.send_to_any_broker(DescribeConfigsRequest(wanted))
    return {
        name: {entry[0]: (entry[1], entry[3]) for entry in entries if entry[1] is not None}
        for code, _, _, name, entries in response.resources
        if not code
    }


async def ensure_topic(kafka: KafkaClient, spec: BoxSpec) -> BoxState:
    """Create the topic, or add partitions and configs that it lacks."""
    found = (await describe_topics(kafka, [spec.name])).get(spec.name)
    if spec.adopt:
        if found is None:
            raise BoxMissing(f"topic {spec.name} does not exist and is to be adopted; create it first")
        return found
    is_created = found is None and await create_topic(kafka, spec)
    if spec.must_be_new and not is_created:
        raise BoxAppeared(f"topic {spec.name} must be new, but others created it at the same moment")
    if found is not None:
        if spec.partitions is not None and spec.partitions < found.partitions:
            raise BoxConflict(
                f"topic {spec.name} has {found.partitions} partitions; Kafka cannot reduce them to {spec.partitions}"
            )
        if spec.partitions is not None and spec.partitions > found.partitions:
            await _add_partitions(kafka, spec.name, spec.partitions)
        await set_configs(kafka, spec)
    return await wait_for_topic(kafka, spec)


def _wanted_configs(spec: BoxSpec, max_message_bytes: int) -> dict[str, str]:
    """Return the configs to set on a topic that takes messages of at most `max_message_bytes` otherwise."""
    retention = {} if spec.retention_ms is None else {"retention.ms": str(spec.retention_ms)}
    is_too_small = spec.min_message_bytes is not None and max_message_bytes < spec.min_message_bytes
    limit = {"max.message.bytes": str(spec.min_message_bytes)} if is_too_small else {}
    return {**retention, **limit, **spec.config}


async def create_topic(kafka: KafkaClient, spec: BoxSpec) -> bool:
    """Create the topic and wait until all brokers show it; return False if it exists already."""
    is_created = True
    partitions = spec.partitions or int(await _broker_default(kafka, "num.partitions", "1"))
    replicas = spec.replication_factor or int(await _broker_default(kafka, "default.replication.factor", "1"))
    max_bytes = MAX_MESSAGE_BYTES
    if spec.min_message_bytes is not None:
        max_bytes = int(await _broker_default(kafka, "message.max.bytes", str(max_bytes)))
    topic: Any = (spec.name, partitions, replicas, [], list(_wanted_configs(spec, max_bytes).items()))
    response = await send_to_controller(kafka, CreateTopicsRequest([topic], REQUEST_TIMEOUT_MS, False))
    for _, code, message in response.topic_errors:
        kind = driver.for_code(code)
        if kind in (driver.InvalidConfigurationError, driver.InvalidReplicationFactorError,
                    driver.InvalidPartitionsError, driver.InvalidTopicError):  # fmt: skip
            raise BoxConflict(f"topic {spec.name} cannot be created: {message}")
        is_created = kind is not driver.TopicAlreadyExistsError
        if is_created:
            check_error_code(code, spec.name)
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        if await _is_visible_to_all_brokers(kafka, spec.name):
            break
        await asyncio.sleep(POLL_INTERVAL_S)
    return is_created


async def _is_visible_to_all_brokers(kafka: KafkaClient, name: str) -> bool:
    """True if every broker that answers in time shows the topic, since the next request may go to any of them."""
    client = await kafka.shared_client()

    async def is_visible_to(node: int) -> bool:
        try:
            with translated(name):
                request = client.send(node, TopicMetadataRequest([name]))
                response = await asyncio.wait_for(request, BROKER_TIMEOUT_S)
        except BrokerUnreachable:
            return True
        return not any(driver.for_code(topic.error_code) in NOT_YET_VISIBLE for topic in read_topics(response))

    return all(await asyncio.gather(*(is_visible_to(broker.nodeId) for broker in client.cluster.brokers())))


async def _broker_default(kafka: KafkaClient, key: str, otherwise: str) -> str:
    response = await kafka.ask_any_broker(
        lambda broker: DescribeConfigsRequest([(ConfigResourceType.BROKER, str(broker), [key])])
    )
    entries = [entry for resource in response.resources for entry in resource[4]]
    return next((entry[1] for entry in entries if entry[0] == key and entry[1]), otherwise)


async def _add_partitions(kafka: KafkaClient, name: str, partitions: int) -> None:
    request = CreatePartitionsRequest([(name, (partitions, None))], REQUEST_TIMEOUT_MS, False)
    response = await send_to_controller(kafka, request)
    for _, code, _ in response.topic_errors:
        check_error_code(code, name)


async def set_configs(kafka: KafkaClient, spec: BoxSpec) -> None:
    """Set the configs of the spec and keep all others.

    AlterConfigs resets what it does not name, so the configs that are set on the topic are read and written again.
    """
    config = (await read_configs(kafka, [spec.name])).get(spec.name)
    if config is None:
        raise NotAuthorised(f"{spec.name}: the broker does not allow to read its configs; add an ACL")
    wanted = _wanted_configs(spec, int(config.get("max.message.bytes", ("0", 0))[0]))
    if _has_configs(config, wanted):
        return
    merged = {key: value for key, (value, source) in config.items() if source == SET_ON_TOPIC} | wanted
    changed = [(ConfigResourceType.TOPIC, spec.name, list(merged.items()))]
    response = await kafka.send_to_any_broker(AlterConfigsRequest(changed))
    for code, message, *_ in response.resources:
        if driver.for_code(code) in (driver.InvalidConfigurationError, driver.InvalidRequestError):
            raise BoxConflict(f"topic {spec.name} cannot be configured: {message}")
        check_error_code(code, spec.name)
    await _wait_for_configs(kafka, spec.name, wanted)


def _has_configs(config: TopicConfig, wanted: Mapping[str, str]) -> bool:
    return all(config.get(key, ("", 0))[0] == value for key, value in wanted.items())


async def _wait_for_configs(kafka: KafkaClient, name: str, wanted: Mapping[str, str]) -> None:
    """Wait until the broker shows the configs, a moment after it set them.

    Give up silently after a while: the broker may spell a value differently.
    """
    deadline = asyncio.get_running_loop().time() + CONFIG_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        if _has_configs((await read_configs(kafka, [name])).get(name, {}), wanted):
            return
        await asyncio.sleep(POLL_INTERVAL_S)


async def wait_for_topic(kafka: KafkaClient, spec: BoxSpec) -> BoxState:
    """Wait until metadata shows the topic with all its partitions and leaders, and return its state."""
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT_S
    while True:
        found = (await describe_topics(kafka, [spec.name])).get(spec.name)
        if (
            found is not None
            and found.partitions >= (spec.partitions or 1)
            and kafka.metadata.has_leaders(spec.name, found.partitions)
        ):
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise BoxMissing(f"topic {spec.name} was created, but the broker does not show it yet")
        await asyncio.sleep(POLL_INTERVAL_S)


async def delete_topics(kafka: KafkaClient, names: Sequence[str]) -> None:
    """Delete the topics that exist, and wait until the broker no longer shows them."""
    present = list(await kafka.partition_counts(names))
    if not present:
        return
    response = await send_to_controller(kafka, DeleteTopicsRequest(present, REQUEST_TIMEOUT_MS))
    for name, code in response.topic_error_codes:
        if driver.for_code(code) is not driver.UnknownTopicOrPartitionError:
            check_error_code(code, name)
    deadline = asyncio.get_running_loop().time() + VISIBLE_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        if not await kafka.partition_counts(present):
            return
        await asyncio.sleep(POLL_INTERVAL_S)
