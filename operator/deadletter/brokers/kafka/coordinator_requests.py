"""What the coordinators remember: how the last transaction of an id ended, and offsets that wait for an end.

Two requests the driver does not know.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

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

from deadletter.brokers.kafka.client import REQUEST_TIMEOUT_MS, KafkaClient
from deadletter.brokers.kafka.errors import translated

T = TypeVar("T")

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


async def last_transaction_committed(line: KafkaClient, name: str) -> bool | None:
    """Was the last transaction of this id committed? None: there was none, or nobody remembers."""

    def read(answer: Any) -> bool | None:
        code, _, state, *_ = answer.states[0]
        if code == UNKNOWN_ID:
            return None
        _raise(code)
        return ENDS.get(state)

    return await _ask(line, CoordinationType.TRANSACTION, name, _DescribeTransactions(name), read)


async def has_unstable_offset(line: KafkaClient, group: str, tp: TopicPartition) -> bool:
    """Was an offset of this partition committed in a transaction that has not ended?"""

    def read(answer: Any) -> bool:
        _raise(answer.error_code)
        return any(partition[4] == UNSTABLE for topic in answer.topics for partition in topic[1])

    return bool(await _ask(line, CoordinationType.GROUP, group, _FetchOffsets(group, tp), read))


async def _ask(line: KafkaClient, kind: CoordinationType, name: str, request: Any, read: Callable[[Any], T]) -> T | None:
    """What the coordinator says, as soon as there is one; None from a broker too old to know."""
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    with translated(name):
        while True:
            client = await line.shared_client()
            try:
                return read(await client.send(await client.coordinator_lookup(kind, name), request))
            except (NotImplementedError, driver.IncompatibleBrokerVersion):
                return None
            except driver.KafkaError as error:
                if not error.retriable or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)


def _raise(code: int) -> None:
    if code:
        raise driver.for_code(code)
