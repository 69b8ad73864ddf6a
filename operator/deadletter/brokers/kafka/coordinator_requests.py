"""Ask coordinators how the last transaction of an id ended, and whether a group has unstable offsets.

The requests are DescribeTransactions (KIP-664) and OffsetFetch 7 with `require_stable` (KIP-447), which the driver does
not have.
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
from deadletter.brokers.kafka.errors import raise_driver_error, translated

T = TypeVar("T")

STRING = CompactString("utf-8")
TRANSACTIONAL_ID_NOT_FOUND, UNSTABLE_OFFSET_COMMIT = 105, 88
RETRY_INTERVAL_S = 0.1
COMMITTED_BY_STATE = {
    "CompleteCommit": True, "PrepareCommit": True, "CompleteAbort": False, "PrepareAbort": False, "Ongoing": False,
}  # fmt: skip


class _DescribeTransactionsResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 65, 0
    _topic = CompactArray(("topic", STRING), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("states", CompactArray(
            ("error_code", Int16), ("id", STRING), ("state", STRING), ("timeout_ms", Int32), ("started_ms", Int64),
            ("producer_id", Int64), ("producer_epoch", Int16), ("topics", _topic), ("tags", TaggedFields),
        )),
        ("tags", TaggedFields),
    )  # fmt: skip


class _DescribeTransactions_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801  (as the driver names versions)
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 65, 0, _DescribeTransactionsResponse
    SCHEMA = Schema(("ids", CompactArray(STRING)), ("tags", TaggedFields))


class _DescribeTransactions(Request[_DescribeTransactions_v0]):  # type: ignore[misc]
    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, kind: type[_DescribeTransactions_v0]) -> Any:
        return kind([self._transactional_id], {})


class _OffsetFetchResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 9, 7
    _partition = CompactArray(
        ("partition", Int32), ("offset", Int64), ("epoch", Int32), ("metadata", STRING), ("error_code", Int16),
        ("tags", TaggedFields),
    )  # fmt: skip
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", CompactArray(("topic", STRING), ("partitions", _partition), ("tags", TaggedFields))),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _OffsetFetch_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION, RESPONSE_TYPE = 9, 7, _OffsetFetchResponse
    _topic = CompactArray(("topic", STRING), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))
    SCHEMA = Schema(("group", STRING), ("topics", _topic), ("require_stable", Boolean), ("tags", TaggedFields))


class _OffsetFetch(Request[_OffsetFetch_v7]):  # type: ignore[misc]
    API_KEY = 9

    def __init__(self, group: str, tp: TopicPartition) -> None:
        self._group, self._tp = group, tp

    def build(self, kind: type[_OffsetFetch_v7]) -> Any:
        return kind(self._group, [(self._tp.topic, [self._tp.partition], {})], True, {})


async def last_transaction_committed(kafka: KafkaClient, transactional_id: str) -> bool | None:
    """True if the last transaction of this id was committed; None if there was none or the coordinator forgot it."""

    def read(response: Any) -> bool | None:
        code, _, state, *_ = response.states[0]
        if code == TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise_driver_error(code)
        return COMMITTED_BY_STATE.get(state)

    request = _DescribeTransactions(transactional_id)
    return await _ask_coordinator(kafka, CoordinationType.TRANSACTION, transactional_id, request, read)


async def has_unstable_offset(kafka: KafkaClient, group: str, tp: TopicPartition) -> bool:
    """True if an offset of this partition was committed in a transaction that has not ended."""

    def read(response: Any) -> bool:
        raise_driver_error(response.error_code)
        return any(partition[4] == UNSTABLE_OFFSET_COMMIT for topic in response.topics for partition in topic[1])

    return bool(await _ask_coordinator(kafka, CoordinationType.GROUP, group, _OffsetFetch(group, tp), read))


async def _ask_coordinator(
    kafka: KafkaClient, kind: CoordinationType, key: str, request: Any, read: Callable[[Any], T]
) -> T | None:
    """Send a request to the coordinator of `key`, again while it moves; None if the broker is too old for it."""
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
    with translated(key):
        while True:
            client = await kafka.shared_client()
            try:
                return read(await client.send(await client.coordinator_lookup(kind, key), request))
            except (NotImplementedError, driver.IncompatibleBrokerVersion):
                return None
            except driver.KafkaError as error:
                if not error.retriable or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(RETRY_INTERVAL_S)
