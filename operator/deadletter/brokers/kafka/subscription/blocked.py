"""Partitions of ours that do not open, or stand still: why, said once each, and how much waits in them."""

from collections.abc import Iterable

import structlog
from aiokafka import TopicPartition

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.kafka.client import LATEST, KafkaClient
from deadletter.brokers.kafka.subscription.group import read_committed_offsets
from deadletter.brokers.kafka.subscription.offset_metadata import decode

log = structlog.stdlib.get_logger("desk")


class BlockedPartitions:
    """Why each of them is shut."""

    def __init__(self) -> None:
        self._why: dict[TopicPartition, BrokerError] = {}

    @property
    def first_error(self) -> BrokerError | None:
        """Why the one that is shut the longest is."""
        return next(iter(self._why.values()), None)

    def of_topic(self, topic: str) -> list[TopicPartition]:
        """Those of one topic."""
        return [tp for tp in self._why if tp.topic == topic]

    def block(self, tp: TopicPartition, why: BrokerError) -> None:
        """It is shut, for this reason now."""
        reason = type(why).__name__
        if type(self._why.get(tp)).__name__ != reason:
            text = "a partition is shut; it is tried again"
            log.warning(text, topic=tp.topic, partition=tp.partition, reason=reason, message=str(why)[:1024])
        self._why[tp] = why

    def unblock(self, tp: TopicPartition) -> None:
        """It is open."""
        if self._why.pop(tp, None) is not None:
            log.info("a partition is open again", topic=tp.topic, partition=tp.partition)

    def clear(self) -> None:
        """None of them is ours any more."""
        self._why.clear()


async def read_lags(line: KafkaClient, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Messages of these partitions that the group has not taken, where end and committed offset are known."""
    wanted = list(tps)
    if not wanted:
        return {}
    ends = await line.list_offsets(dict.fromkeys(wanted, LATEST))
    found = {}
    for tp, said in (await read_committed_offsets(line, group, wanted)).items():
        end = ends.get(tp)
        if isinstance(end, int):
            highest, _ = decode(said.offset, said.metadata or "")
            found[tp] = max(0, end - highest - 1)
    return found
