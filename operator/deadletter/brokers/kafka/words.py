"""What the coordinators remember: how the last transaction of an id ended, and offsets that wait for an end.

Two requests the driver does not know.
"""

from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as driver
from aiokafka.client import CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from deadletter.brokers.kafka.errors import check, translated
from deadletter.brokers.kafka.line import Line

TEXT = CompactString("utf-8")
UNKNOWN_ID, UNSTABLE = 105, 88
ENDS = {"CompleteCommit": True, "PrepareCommit": True, "CompleteAbort": False, "PrepareAbort": False, "Ongoing": False}


class _Transactions(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 65, 0
    _topic = CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("states", CompactArray(
            ("error_code", Int16), ("id", TEXT), ("state", TEXT), ("timeout_ms", Int32), ("started_ms", Int64),
            ("producer_id", Int64), ("producer_epoch", Int16), ("topics", _topic), ("tags", TaggedFields),
        )),
        ("tags", TaggedFields),
    )  # fmt: skip


class _DescribeTransactions_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801  (as the driver names versions)
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 65, 0, _Transactions
    SCHEMA = Schema(("ids", CompactArray(TEXT)), ("tags", TaggedFields))


class _DescribeTransactions(Request[_DescribeTransactions_v0]):  # type: ignore[misc]
    API_KEY = 65

    def __init__(self, name: str) -> None:
        self._name = name

    def build(self, kind: type[_DescribeTransactions_v0]) -> Any:
        return kind([self._name], {})


class _Offsets(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 9, 7
    _partition = CompactArray(
        ("partition", Int32), ("offset", Int64), ("epoch", Int32), ("metadata", TEXT), ("error_code", Int16),
        ("tags", TaggedFields),
    )  # fmt: skip
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", CompactArray(("topic", TEXT), ("partitions", _partition), ("tags", TaggedFields))),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _FetchOffsets_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 9, 7, _Offsets
    _topic = CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))
    SCHEMA = Schema(("group", TEXT), ("topics", _topic), ("require_stable", Boolean), ("tags", TaggedFields))


class _FetchOffsets(Request[_FetchOffsets_v7]):  # type: ignore[misc]
    API_KEY = 9

    def __init__(self, group: str, tp: TopicPartition) -> None:
        self._group, self._tp = group, tp

    def build(self, kind: type[_FetchOffsets_v7]) -> Any:
        return kind(self._group, [(self._tp.topic, [self._tp.partition], {})], True, {})


async def last_word(line: Line, name: str) -> bool | None:
    """Was the last transaction of this id committed? None: there was none, or nobody remembers."""
    answer = await _ask(line, CoordinationType.TRANSACTION, name, _DescribeTransactions(name))
    for code, _, state, *_ in answer.states if answer is not None else ():
        if code != UNKNOWN_ID:
            check(code, name)
            return ENDS.get(state)
    return None


async def offset_waits(line: Line, group: str, tp: TopicPartition) -> bool:
    """Was an offset of this partition committed in a transaction that has not ended?"""
    answer = await _ask(line, CoordinationType.GROUP, group, _FetchOffsets(group, tp))
    if answer is None:
        return False
    check(answer.error_code, group)
    return any(partition[4] == UNSTABLE for topic in answer.topics for partition in topic[1])


async def _ask(line: Line, kind: CoordinationType, name: str, request: Any) -> Any:
    """The coordinator's answer; None from a broker too old to know."""
    client = await line.client()
    with translated(name):
        node = await client.coordinator_lookup(kind, name)
        try:
            return await client.send(node, request)
        except (NotImplementedError, driver.IncompatibleBrokerVersion):
            return None
