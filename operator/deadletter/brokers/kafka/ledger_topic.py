"""Create the ledger topic, and keep its replicas and min.insync.replicas like those of its dead topic."""

from collections.abc import Mapping

from deadletter.brokers.errors import BrokerError, BrokerUnreachable
from deadletter.brokers.kafka import topics
from deadletter.brokers.kafka.add_replicas import Assignment, plan_added_replicas, reassign_partitions
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.topics import TopicConfig
from deadletter.core.box_types import BoxSpec

LEDGER_PARTITIONS = 3
LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "max.compaction.lag.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
# Configs of the dead topic that its ledger does not take over: they delete, limit or age records, or belong to one
# topic's partitions. A codec of the dead topic must not make the ledger unreadable.
NOT_INHERITED = ("cleanup.", "retention.", "segment.", "delete.", "min.compaction.", "max.compaction.",
                 "min.cleanable.", "message.", "max.message.", "compression.", "remote.", "local.",
                 "leader.replication.", "follower.replication.")  # fmt: skip
MIN_INSYNC = "min.insync.replicas"


async def ensure_ledger(kafka: KafkaClient, ledger: str, dead: str) -> None:
    """Create the ledger unless it exists, with the replication factor and the configs of its dead topic."""
    counts = await kafka.partition_counts([ledger, dead])
    if ledger in counts:
        return
    replicas = _fewest_replicas(kafka.metadata.replicas(dead, counts[dead])) if dead in counts else None
    spec = BoxSpec(ledger, LEDGER_PARTITIONS, replicas, config=await _ledger_config(kafka, dead))
    await topics.create_topic(kafka, spec)
    await topics.wait_for_topic(kafka, spec)


async def _ledger_config(kafka: KafkaClient, dead: str) -> dict[str, str]:
    """Return the configs set on the dead topic that do no harm to a ledger, and those that every ledger needs."""
    config = (await topics.read_configs(kafka, [dead])).get(dead, {})
    set_on_dead = {key: value for key, (value, source) in config.items() if source == topics.SET_ON_TOPIC}
    return {key: value for key, value in set_on_dead.items() if not key.startswith(NOT_INHERITED)} | LEDGER_CONFIG


async def match_ledger_replication(kafka: KafkaClient, ledger: str, dead: str) -> str:
    """Start to give an existing ledger the replicas and min.insync.replicas of its dead topic.

    Return what is missing if the broker refuses it, as a sentence without a period; else an empty string. New replicas
    are copied after this returns, so min.insync.replicas follows with a later call, when they are in sync.
    """
    counts = await kafka.partition_counts_or_errors([ledger, dead])
    ledger_count, dead_count = counts.get(ledger), counts.get(dead)
    if not isinstance(ledger_count, int) or not isinstance(dead_count, int):
        return ""
    current = kafka.metadata.replicas(ledger, ledger_count)
    wanted = kafka.metadata.replicas(dead, dead_count)
    missing = f"{ledger} has {_fewest_replicas(current)} of {_fewest_replicas(wanted)} replicas"
    additions = plan_added_replicas(current, wanted)
    try:
        configs = await topics.read_configs(kafka, [ledger, dead])
        if ledger not in configs:
            return f"{missing}, and the broker does not allow to read its configs" if additions else ""
        is_ledger = topics.topic_state(ledger, ledger_count, configs[ledger]).compacted
        if additions and is_ledger:
            await reassign_partitions(kafka, ledger, additions)
        elif not additions:
            missing = f"{ledger} has a lower {MIN_INSYNC} than {dead}"
            in_sync = kafka.metadata.min_in_sync_replicas(ledger, ledger_count)
            await _match_min_insync(kafka, ledger, configs, dead, in_sync)
    except BrokerUnreachable:
        raise
    except BrokerError as error:
        return f"{missing}, and the broker refuses to raise it ({type(error).__name__})"
    return ""


async def _match_min_insync(
    kafka: KafkaClient, ledger: str, configs: Mapping[str, TopicConfig], dead: str, in_sync: int
) -> None:
    current, wanted = (configs.get(one, {}).get(MIN_INSYNC, ("1", 0))[0] for one in (ledger, dead))
    if int(current) < int(wanted) <= in_sync:
        await topics.set_configs(kafka, BoxSpec(ledger, config={MIN_INSYNC: wanted}))


def _fewest_replicas(replicas: Assignment) -> int:
    return min(len(brokers) for brokers in replicas.values())
