"""Delete the offsets of a consumer group, as an administrator or their expiry does."""

import asyncio

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from deadletter.brokers.contract import Broker
from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.memory import MemoryBroker
from deadletter.brokers.redis.broker import RedisBroker
from tests.brokers.helpers import TIMEOUT_S

SUBSCRIBED = 86
MOVING = {14, 15, 16}  # the coordinator loads the group, is not there, or was moved to another broker


class _DeletedGroups(Response):
    API_KEY = 42
    API_VERSION = 0
    SCHEMA = Schema(("throttle_time_ms", Int32), ("results", Array(("group", String("utf-8")), ("error_code", Int16))))


class _DeleteGroups(RequestStruct):
    API_KEY = 42
    API_VERSION = 0
    RESPONSE_TYPE = _DeletedGroups
    SCHEMA = Schema(("groups", Array(String("utf-8"))))


class DeleteGroupsRequest(Request[_DeleteGroups]):
    """DeleteGroups request; aiokafka has no call for it."""

    API_KEY = 42

    def __init__(self, *groups: str) -> None:
        self._groups = list(groups)

    def build(self, request_struct_class: type[_DeleteGroups]) -> _DeleteGroups:
        return request_struct_class(self._groups)


class _DeletedOffsets(Response):
    API_KEY = 47
    API_VERSION = 0
    _partition = Array(("partition", Int32), ("error_code", Int16))
    SCHEMA = Schema(
        ("error_code", Int16),
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", String("utf-8")), ("partitions", _partition))),
    )


class _DeleteOffsets(RequestStruct):
    API_KEY = 47
    API_VERSION = 0
    RESPONSE_TYPE = _DeletedOffsets
    SCHEMA = Schema(
        ("group", String("utf-8")), ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32))))
    )


class DeleteOffsetsRequest(Request[_DeleteOffsets]):
    """OffsetDelete request; aiokafka has no call for it."""

    API_KEY = 47

    def __init__(self, group: str, topic: str, partitions: int) -> None:
        self._group, self._topics = group, [(topic, list(range(partitions)))]

    def build(self, request_struct_class: type[_DeleteOffsets]) -> _DeleteOffsets:
        return request_struct_class(self._group, self._topics)


async def delete_offsets(broker: KafkaBroker, source: str, group: str) -> None:
    """Delete the group's offsets of a topic as soon as none of its members is subscribed to it."""
    kafka = broker._kafka
    request = DeleteOffsetsRequest(group, source, await kafka.partition_count(source))
    codes = {SUBSCRIBED}
    async with asyncio.timeout(TIMEOUT_S):
        while codes & {SUBSCRIBED, *MOVING}:  # during a rebalance every topic counts as subscribed
            await asyncio.sleep(0.1)
            coordinator = await (await kafka.admin_client()).find_coordinator(group)
            answer = await (await kafka.shared_client()).send(coordinator, request)
            codes = {answer.error_code, *(code for _, partitions in answer.topics for _, code in partitions)}
    assert codes == {0}


async def delete_group(broker: Broker, source: str, group: str) -> None:
    """Delete the group. On Kafka it must have no members."""
    if isinstance(broker, KafkaBroker):
        kafka, codes = broker._kafka, set(MOVING)
        async with asyncio.timeout(TIMEOUT_S):
            while codes & MOVING:
                coordinator = await (await kafka.admin_client()).find_coordinator(group)
                answer = await (await kafka.shared_client()).send(coordinator, DeleteGroupsRequest(group))
                codes = {code for _, code in answer.results}
                await asyncio.sleep(0.1 * bool(codes & MOVING))
        assert codes == {0}
    elif isinstance(broker, RedisBroker):
        assert await broker._client.command("XGROUP", "DESTROY", source, group) == 1
    else:
        assert isinstance(broker, MemoryBroker)
        del broker._server.groups[source, group]
