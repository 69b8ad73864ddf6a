"""Request topic metadata with topic ids (KIP-516), and cache what the last response said about each topic.

The driver stops at version 5 of the Metadata request, which has no topic ids; this module adds version 10. A broker
older than Kafka 2.8 is asked in version 5 and gives no ids.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

TEXT = CompactString("utf-8")
NO_ID = bytes(16)


class _Uuid:
    """The protocol type of a topic id, sixteen bytes, which the driver does not have."""

    @staticmethod
    def encode(value: bytes) -> bytes:
        return value

    @staticmethod
    def decode(data: BytesIO) -> bytes:
        return data.read(16)


class _Metadata_v10_Response(Response):  # type: ignore[misc]  # noqa: N801  (as the driver names versions)
    API_KEY, API_VERSION = 3, 10
    _brokers = CompactArray(
        ("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), ("tags", TaggedFields),
    )  # fmt: skip
    _partitions = CompactArray(
        ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32),
        ("replicas", CompactArray(Int32)), ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)),
        ("tags", TaggedFields),
    )  # fmt: skip
    _topics = CompactArray(
        ("error_code", Int16), ("topic", TEXT), ("topic_id", _Uuid), ("is_internal", Boolean),
        ("partitions", _partitions), ("authorized_operations", Int32), ("tags", TaggedFields),
    )  # fmt: skip
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _brokers),
        ("cluster_id", TEXT),
        ("controller_id", Int32),
        ("topics", _topics),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Metadata_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 3, 10, _Metadata_v10_Response
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicMetadataRequest(Request[MetadataRequest_v5 | _Metadata_v10]):  # type: ignore[misc]
    """A Metadata request for these topics that creates no topic."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def build(self, kind: type[RequestStruct]) -> Any:
        """Return the request in the newest version that the broker supports."""
        if kind is MetadataRequest_v5:
            return kind(list(self._names), False)
        return kind([(NO_ID, name, {}) for name in self._names], False, False, False, {})


class TopicMetadata(NamedTuple):
    """One topic of a metadata response.

    `id` is the text that Kafka's own tools show; it is empty if the broker gave none.
    """

    error_code: int
    name: str
    id: str
    partitions: Sequence[tuple[int, int, Sequence[int], Sequence[int]]]  # number, leader, replicas, in-sync replicas


def read_topics(response: Any) -> list[TopicMetadata]:
    """Return the topics of a response of either version."""
    if response.API_VERSION == MetadataRequest_v5.API_VERSION:
        return [
            TopicMetadata(
                code, name, "", [(number, leader, replicas, isr) for _, number, leader, replicas, isr, _ in found]
            )
            for code, name, _, found in response.topics
        ]
    return [
        TopicMetadata(code, name, _format_id(id_), [(one[1], one[2], one[4], one[5]) for one in found])
        for code, name, id_, _, found, *_ in response.topics
    ]


def _format_id(topic_id: bytes) -> str:
    return "" if topic_id == NO_ID else urlsafe_b64encode(topic_id).decode().rstrip("=")


class MetadataCache:
    """What the last metadata response said about each topic.

    The driver replaces its own map as a whole with each response, so leaders of other topics would be lost there.
    """

    def __init__(self) -> None:
        self._leaders: dict[TopicPartition, int] = {}
        self._replicas: dict[TopicPartition, tuple[tuple[int, ...], int]] = {}
        self._ids: dict[str, str] = {}

    def update(self, topics: Iterable[TopicMetadata]) -> None:
        """Take over the topics of a response."""
        for topic in topics:
            self._ids[topic.name] = topic.id
            for partition, leader, replicas, in_sync in topic.partitions:
                self._leaders[TopicPartition(topic.name, partition)] = leader
                self._replicas[TopicPartition(topic.name, partition)] = tuple(replicas), len(in_sync)

    def leader(self, tp: TopicPartition) -> int:
        """Return the node id of the partition's leader; -1 if it has none or was not asked for."""
        return self._leaders.get(tp, -1)

    def knows_leaders_of(self, tps: Iterable[TopicPartition]) -> bool:
        """True if every partition was part of a response, with or without a leader."""
        return all(tp in self._leaders for tp in tps)

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """True if every partition of the topic has a leader."""
        return all(self.leader(TopicPartition(topic, p)) >= 0 for p in range(partitions))

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic; empty if the broker gave none."""
        return self._ids.get(topic, "")

    def replicas(self, topic: str, partitions: int) -> dict[int, tuple[int, ...]]:
        """Return the brokers that hold each partition."""
        return {p: self._replicas[TopicPartition(topic, p)][0] for p in range(partitions)}

    def min_in_sync_replicas(self, topic: str, partitions: int) -> int:
        """Return the smallest number of in-sync replicas of any partition."""
        return min(self._replicas[TopicPartition(topic, p)][1] for p in range(partitions))
