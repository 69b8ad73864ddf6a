"""Add replicas to the partitions of a topic with AlterPartitionReassignments (KIP-455), which the driver lacks."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import errors as driver
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from deadletter.brokers.errors import BoxRefused, NotSupported
from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.errors import check_error_code
from deadletter.brokers.kafka.topics import send_to_controller

STRING = CompactString("utf-8")
Assignment = Mapping[int, Sequence[int]]  # partition -> brokers, the preferred leader first


class _AlterReassignmentsResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 45, 0
    _partition = CompactArray(
        ("partition", Int32), ("error_code", Int16), ("error_message", STRING), ("tags", TaggedFields)
    )
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", STRING),
        ("topics", CompactArray(("topic", STRING), ("partitions", _partition), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class _AlterReassignments_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801  (as the driver names versions)
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 45, 0, _AlterReassignmentsResponse
    _partition = CompactArray(("partition", Int32), ("replicas", CompactArray(Int32)), ("tags", TaggedFields))
    _topic = CompactArray(("topic", STRING), ("partitions", _partition), ("tags", TaggedFields))
    SCHEMA = Schema(("timeout_ms", Int32), ("topics", _topic), ("tags", TaggedFields))


class _AlterReassignments(Request[_AlterReassignments_v0]):  # type: ignore[misc]
    API_KEY = 45

    def __init__(self, topic: str, assignment: Assignment) -> None:
        self._topic, self._assignment = topic, assignment

    def build(self, kind: type[_AlterReassignments_v0]) -> Any:
        wanted: list[tuple[int, list[int], dict[int, bytes]]] = [
            (p, list(ids), {}) for p, ids in self._assignment.items()
        ]
        return kind(REQUEST_TIMEOUT_MS, [(self._topic, wanted, {})], {})


def plan_added_replicas(current: Assignment, like: Assignment) -> dict[int, list[int]]:
    """Return the partitions of `current` that have fewer replicas than those of `like`, extended to as many.

    Existing replicas stay first, so the leader does not move. The new ones are on the brokers of `like`, whose
    partitions the cluster has spread over brokers and racks.
    """
    wanted = min(len(replicas) for replicas in like.values())
    found = {}
    for partition, replicas in current.items():
        candidates = [one for one in like[partition % len(like)] if one not in replicas]
        if len(replicas) < wanted:
            found[partition] = [*replicas, *candidates][:wanted]
    return found


async def reassign_partitions(kafka: KafkaClient, topic: str, assignment: Assignment) -> None:
    """Request these replicas; return when the controller has accepted, before data is copied.

    It needs the right to ALTER the cluster. NotAuthorised, NotSupported or BoxRefused: nothing was changed.
    """
    try:
        response = await send_to_controller(kafka, _AlterReassignments(topic, assignment))
    except NotImplementedError as error:
        raise NotSupported(f"{topic}: the broker is too old to add replicas") from error
    check_error_code(response.error_code, topic)
    for _, partitions, _ in response.topics:
        for partition, code, message, _ in partitions:
            if code:
                kind = driver.for_code(code).__name__
                raise BoxRefused(
                    f"{topic}: the broker did not add replicas to partition {partition} ({kind}: {message})"
                )
