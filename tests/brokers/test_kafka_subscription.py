"""The subscription of a courier: idle claims, attempts, lag, recreated and added partitions, and rebalances."""

import asyncio
import contextlib
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, Fenced, NotAuthorised, TooLarge
from deadletter.brokers.kafka.subscription import assignment
from deadletter.brokers.kafka.subscription import subscription as kafka_subscription
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.types import Buried, Delivered
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import (
    TIMEOUT_S,
    box_names,
    claim_some,
    make_boxes,
    numbered_messages,
    publish_all,
    settle_all,
    values,
)

BROKER = "kafka"
MAX_IN_FLIGHT = 2 * 256  # of a courier with the highest concurrency


async def test_a_claim_without_messages_is_empty_however_fast_the_clock_runs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("idle"))

    def clock(step: float) -> SimpleNamespace:
        readings = iter(range(1_000_000))
        return SimpleNamespace(monotonic=lambda: next(readings) * step, time=time.time, time_ns=time.time_ns)

    async with broker.subscribe(boxes.subscription()) as subscription:
        for hundredths in range(20, 110, 5):
            monkeypatch.setattr(kafka_subscription, "time", clock(hundredths / 100))
            assert await subscription.claim(1) == []


async def test_the_attempts_of_hundreds_of_failed_messages_fit_into_the_commit_metadata(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("many"))
    await publish_all(broker, boxes.source, numbered_messages(MAX_IN_FLIGHT + 1))
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, MAX_IN_FLIGHT + 1)
        for claim in claims[1:]:
            subscription.record_attempt(claim, 3, now_ms())
        await subscription.settle(claims[0], Delivered())
    async with broker.subscribe(boxes.subscription("pod-1")) as subscription:
        again = await claim_some(subscription, MAX_IN_FLIGHT)
        assert {claim.message.value for claim in again} == {claim.message.value for claim in claims[1:]}
        assert {claim.attempts for claim in again} == {3}


async def test_the_lag_grows_although_nothing_is_claimed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subscription, "LAG_INTERVAL_S", 0.1)
    boxes = await make_boxes(broker, fresh_name("growing"))
    async with broker.subscribe(boxes.subscription()) as subscription, asyncio.timeout(TIMEOUT_S):
        for lag in (5, 10, 15):  # the driver fetches ahead only once
            await publish_all(broker, boxes.source, numbered_messages(5))
            while subscription.lag < lag:
                await asyncio.sleep(0.05)
        await settle_all(subscription, await claim_some(subscription, 15))
        assert subscription.lag == 0


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_source_that_is_recreated_under_a_subscription_is_read_from_its_start(
    broker: Broker, is_taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_subscription, "METADATA_MAX_AGE_MS", 1_000)
    boxes = await make_boxes(broker, fresh_name("recreated"))
    await publish_all(broker, boxes.source, numbered_messages(20))
    async with contextlib.AsyncExitStack() as stack:
        subscription = await stack.enter_async_context(broker.subscribe(boxes.subscription()))
        await settle_all(subscription, await claim_some(subscription, 20))
        if is_taken_over:
            await stack.aclose()
            subscription = await stack.enter_async_context(broker.subscribe(boxes.subscription("pod-1")))
            assert await subscription.claim(1) == []
        await broker.delete([boxes.source])
        await make_boxes(broker, boxes.source)
        await publish_all(broker, boxes.source, numbered_messages(10, 100))
        claims = await claim_some(subscription, 10)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(10, 100)]
        await settle_all(subscription, claims)
    await publish_all(broker, boxes.source, numbered_messages(10, 200))
    async with broker.subscribe(boxes.subscription("pod-2")) as subscription:
        claims = await claim_some(subscription, 10)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(10, 200)]


async def test_a_partition_added_to_the_source_is_read_from_its_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_subscription, "METADATA_MAX_AGE_MS", 1_000)
    boxes = await make_boxes(broker, fresh_name("grown"))
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription(from_earliest=False)) as subscription:
        assert await subscription.claim(1) == []
        await broker.ensure(BoxSpec(boxes.source, 2))
        await publish_all(broker, boxes.source, numbered_messages(5, 10), 1)
        claims = await claim_some(subscription, 5)
        assert [claim.message.value for claim in claims] == [one.value for one in numbered_messages(5, 10)]


async def test_a_blocked_partition_is_reported_and_its_lag_counted_while_others_are_processed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("blocked"), partitions=2)
    for partition in range(2):
        await publish_all(broker, boxes.source, numbered_messages(1), partition)
    async with broker.subscribe(boxes.subscription()) as subscription:
        await settle_all(subscription, await claim_some(subscription, 2))
    open_partition, errors = SourcePartition.open, list[BrokerError]([BrokerUnreachable("no leader")])

    async def failing(self: SourcePartition) -> int:
        if self.tp.partition == 1 and errors:
            raise errors[0]
        return await open_partition(self)

    monkeypatch.setattr(SourcePartition, "open", failing)
    monkeypatch.setattr(kafka_subscription, "LAG_INTERVAL_S", 0.1)
    monkeypatch.setattr(assignment, "REOPEN_INTERVAL_S", 0.05)
    monkeypatch.setattr(assignment, "JOIN_TIMEOUT_S", 10.0)
    await publish_all(broker, boxes.source, numbered_messages(5), 1)
    with capture_logs() as logs:
        async with broker.subscribe(boxes.subscription("pod-1")) as subscription, asyncio.timeout(TIMEOUT_S):
            await publish_all(broker, boxes.source, numbered_messages(3), 0)
            await settle_all(subscription, await claim_some(subscription, 3))
            assert subscription.blocked_by is errors[0]
            while subscription.lag != 5:
                await asyncio.sleep(0.05)
            errors[0] = NotAuthorised("no right")
            while subscription.blocked_by is not errors[0]:
                await asyncio.sleep(0.05)
            errors.clear()
            await settle_all(subscription, await claim_some(subscription, 5))
            assert (subscription.blocked_by, subscription.lag) == (None, 0)
    logged = [(line["log_level"], line["partition"], line.get("reason")) for line in logs if "partition" in line]
    assert logged == [("warning", 1, "BrokerUnreachable"), ("warning", 1, "NotAuthorised"), ("info", 1, None)]


async def test_a_letter_that_is_too_large_does_not_hold_up_others(broker: Broker) -> None:
    name = fresh_name("large")
    await broker.ensure(BoxSpec(box_names(name).dead, 1, config={"max.message.bytes": "3000"}))
    boxes = await make_boxes(broker, name)
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 3)
        large = Message(b"k", b"x" * 5_000)
        settled = await asyncio.gather(
            subscription.settle(claims[0], Buried(boxes.dead, claims[0].message)),
            subscription.settle(claims[1], Buried(boxes.dead, large)),
            subscription.settle(claims[2], Buried(boxes.dead, claims[2].message)),
            return_exceptions=True,
        )
        assert [type(one) for one in settled] == [type(None), TooLarge, type(None)]
        await subscription.settle(claims[1], Delivered())
    assert await values(broker, boxes.dead) == [b"v0", b"v2"]


async def test_two_subscriptions_share_the_messages_and_settle_each_once(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("share"), partitions=4)
    for partition in range(4):
        await publish_all(broker, boxes.source, numbered_messages(50, partition * 50), partition)
    settled: Counter[bytes | None] = Counter()
    async with broker.subscribe(boxes.subscription("pod-0")) as first:
        held = await claim_some(first, 20)
        async with (
            open_broker(kafka_at(kafka), no_secrets, LOOPBACK) as other,
            other.subscribe(boxes.subscription("pod-1")) as second,
        ):
            await asyncio.gather(settle_until_done(first, settled), settle_until_done(second, settled))
        assert not any(first.holds(claim) for claim in held)
        with pytest.raises(Fenced):
            await first.settle(held[0], Delivered())
    assert sorted(settled.elements()) == sorted(f"v{n}".encode() for n in range(200))


async def settle_until_done(subscription: Subscription, settled: Counter[bytes | None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while settled.total() < 200:
        assert time.monotonic() < deadline, f"only {len(settled)} of 200"
        claims = await subscription.claim(20)
        outcomes = await asyncio.gather(
            *(subscription.settle(one, Delivered()) for one in claims), return_exceptions=True
        )
        for claim, outcome in zip(claims, outcomes, strict=True):
            assert outcome is None or isinstance(outcome, Fenced)
            settled[claim.message.value] += outcome is None
