"""The Metadata request with topic ids (KIP-516), which the driver does not ask for: it stops at version 5.

A broker older than Kafka 2.8 is asked in version 5 and gives no ids.
"""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

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
    """Sixteen bytes; the driver has no such type."""

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
    """Metadata of these topics; creates none."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def build(self, kind: type[RequestStruct]) -> Any:
        """The request in the newest version that the broker supports."""
        if kind is MetadataRequest_v5:
            return kind(list(self._names), False)
        return kind([(NO_ID, name, {}) for name in self._names], False, False, False, {})


class TopicMetadata(NamedTuple):
    """One topic of the answer. `id` is the text that Kafka's own tools show; empty if the broker gave none."""

    error_code: int
    name: str
    id: str
    partitions: Sequence[tuple[int, int, Sequence[int], Sequence[int]]]  # number, leader, replicas, in sync


def read_topics(answer: Any) -> list[TopicMetadata]:
    """The topics of an answer, whichever version it has."""
    if answer.API_VERSION == MetadataRequest_v5.API_VERSION:
        return [
            TopicMetadata(
                code, name, "", [(number, leader, replicas, isr) for _, number, leader, replicas, isr, _ in found]
            )
            for code, name, _, found in answer.topics
        ]
    return [
        TopicMetadata(code, name, _text(id_), [(one[1], one[2], one[4], one[5]) for one in found])
        for code, name, id_, _, found, *_ in answer.topics
    ]


def _text(topic_id: bytes) -> str:
    return "" if topic_id == NO_ID else urlsafe_b64encode(topic_id).decode().rstrip("=")
