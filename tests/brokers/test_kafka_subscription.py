"""A desk on Kafka: what it does with the time, the memory and the metadata it has."""

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.brokers.kafka.subscription import subscription as kafka_desk
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Delivered
from deadletter.clock import now_ms
from deadletter.core.boxes import BoxSpec
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import TIMEOUT_S, claim_some, make_boxes, numbered_messages, publish_all, settle_all

BROKER = "kafka"
MOST_IN_HAND = 2 * 256  # of a courier with the highest concurrency


async def test_a_desk_with_nothing_to_claim_says_so_however_the_time_passes_between_two_looks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("idle"))

    def clock(step: float) -> SimpleNamespace:
        looks = iter(range(1_000_000))
        return SimpleNamespace(monotonic=lambda: next(looks) * step, time=time.time, time_ns=time.time_ns)

    async with broker.subscribe(boxes.subscription()) as desk:
        for hundredths in range(20, 110, 5):
            monkeypatch.setattr(kafka_desk, "time", clock(hundredths / 100))
            assert await desk.claim(1) == []


async def test_hundreds_of_messages_that_failed_fit_beside_the_offset_of_their_group(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("many"))
    await publish_all(broker, boxes.source, numbered_messages(MOST_IN_HAND + 1))
    async with broker.subscribe(boxes.subscription()) as desk:
        claims = await claim_some(desk, MOST_IN_HAND + 1)
        for claim in claims[1:]:
            desk.record_attempt(claim, 3, now_ms())
        await desk.settle(claims[0], Delivered())
    async with broker.subscribe(boxes.subscription("pod-1")) as desk:
        again = await claim_some(desk, MOST_IN_HAND)
        assert {claim.message.value for claim in again} == {claim.message.value for claim in claims[1:]}
        assert {claim.attempts for claim in again} == {3}


async def test_who_claims_nothing_still_sees_the_source_grow(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_desk, "LAG_INTERVAL_S", 0.1)
    boxes = await make_boxes(broker, fresh_name("growing"))
    async with broker.subscribe(boxes.subscription()) as desk, asyncio.timeout(TIMEOUT_S):
        for lag in (5, 10, 15):  # the driver reads ahead once
            await publish_all(broker, boxes.source, numbered_messages(5))
            while desk.lag < lag:
                await asyncio.sleep(0.05)
        await settle_all(desk, await claim_some(desk, 15))
        assert desk.lag == 0


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_source_made_anew_under_an_open_desk_is_read_from_its_beginning(
    broker: Broker, is_taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_desk, "METADATA_MAX_AGE_MS", 1_000)
    boxes = await make_boxes(broker, fresh_name("anew"))
    await publish_all(broker, boxes.source, numbered_messages(20))
    async with contextlib.AsyncExitStack() as stack:
        desk = await stack.enter_async_context(broker.subscribe(boxes.subscription()))
        await settle_all(desk, await claim_some(desk, 20))
        if is_taken_over:
            await stack.aclose()
            desk = await stack.enter_async_context(broker.subscribe(boxes.subscription("pod-1")))
            assert await desk.claim(1) == []
        await broker.delete([boxes.source])
        await make_boxes(broker, boxes.source)
        await publish_all(broker, boxes.source, numbered_messages(10, 100))
        claims = await claim_some(desk, 10)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(10, 100)]
        await settle_all(desk, claims)
    await publish_all(broker, boxes.source, numbered_messages(10, 200))
    async with broker.subscribe(boxes.subscription("pod-2")) as desk:
        claims = await claim_some(desk, 10)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(10, 200)]


async def test_a_partition_added_to_the_source_is_read_from_its_beginning(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_desk, "METADATA_MAX_AGE_MS", 1_000)
    boxes = await make_boxes(broker, fresh_name("grown"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription(from_earliest=False)) as desk:
        assert await desk.claim(1) == []
        await broker.ensure(BoxSpec(boxes.source, 2))
        await publish_all(broker, boxes.source, numbered_messages(5, 10), 1)
        claims = await claim_some(desk, 5)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(5, 10)]


async def test_a_partition_that_does_not_open_is_named_and_counted_while_others_are_at_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("shut"), partitions=2)
    for partition in range(2):
        await publish_all(broker, boxes.source, numbered_messages(1), partition)
    async with broker.subscribe(boxes.subscription()) as desk:
        await settle_all(desk, await claim_some(desk, 2))
    opened, why = SourcePartition.open, list[BrokerError]([BrokerUnreachable("no leader")])

    async def opening(self: SourcePartition) -> int:
        if self.tp.partition == 1 and why:
            raise why[0]
        return await opened(self)

    monkeypatch.setattr(SourcePartition, "open", opening)
    for name, seconds in {"LAG": 0}.items():
        monkeypatch.setattr(kafka_desk, name, seconds)
    await publish_all(broker, boxes.source, numbered_messages(5), 1)
    with capture_logs() as logs:
        async with broker.subscribe(boxes.subscription("pod-1")) as desk, asyncio.timeout(TIMEOUT_S):
            await publish_all(broker, boxes.source, numbered_messages(3), 0)
            await settle_all(desk, await claim_some(desk, 3))
            assert desk.blocked_by is why[0]
            while desk.lag != 5:
                await asyncio.sleep(0.05)
            why[0] = NotAuthorised("no right")
            while desk.blocked_by is not why[0]:
                await asyncio.sleep(0.05)
            why.clear()
            await settle_all(desk, await claim_some(desk, 5))
            assert (desk.blocked_by, desk.lag) == (None, 0)
    said = [(line["log_level"], line["partition"], line.get("reason")) for line in logs if "partition" in line]
    assert said == [("warning", 1, "BrokerUnreachable"), ("warning", 1, "NotAuthorised"), ("info", 1, None)]
