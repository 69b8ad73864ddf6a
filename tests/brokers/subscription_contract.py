"""Tests of the contract of subscriptions: the same for the broker in memory, Kafka and Redis."""

import asyncio
import time
import uuid

import pytest

from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.errors import BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.types import Buried, Claim, CommitBatch, Delivered, Discarded, Parked, Publication
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Message
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.brokers.helpers import (
    TIMEOUT_S,
    Boxes,
    MakeName,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publish_all,
    read_all,
    settle_all,
    values,
)

LARGE = 300_000


class SubscriptionContract:
    """Tests of claiming, settling and parking."""

    @pytest.fixture
    def fresh(self) -> MakeName:
        return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"

    async def stats(self, monitor, boxes: Boxes, depth: int = 0):
        """Sweep until the monitor has caught up and counts this depth."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
            if isinstance(found, BrokerError) and not isinstance(found, BrokerUnreachable):
                raise found  # but a new partition may have no leader yet: sweep again
            if not isinstance(found, BrokerError) and found.caught_up and found.depth == depth:
                return found
            assert time.monotonic() < deadline, f"{found!r}, expected depth {depth}"
            await asyncio.sleep(0.1)

    async def test_delivered_messages_are_not_claimed_again(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(10))
        async with broker.subscribe(boxes.subscription()) as subscription:
            claims = await claim_some(subscription, 10)
            assert [claim.message.value for claim in claims] == [m.value for m in numbered_messages(10)]
            assert all(subscription.holds(claim) for claim in claims)
            # Out of order, and two claims are not settled.
            await settle_all(subscription, [claims[n] for n in (9, 3, 1, 0, 5, 6, 8, 4)])
        await publish_all(broker, boxes.source, numbered_messages(1, 10))
        async with broker.subscribe(boxes.subscription()) as subscription:
            again = await claim_some(subscription, 3)
            assert sorted(claim.message.value or b"" for claim in again) == [b"v10", b"v2", b"v7"]
            await settle_all(subscription, again)
        async with broker.subscribe(boxes.subscription()) as subscription:
            assert await subscription.claim(5) == []

    async def test_a_new_group_can_start_at_the_end(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(3))
        async with broker.subscribe(boxes.subscription(from_earliest=False)) as subscription:
            assert await subscription.claim(1) == []
        await publish_all(broker, boxes.source, numbered_messages(1, 3))
        async with broker.subscribe(boxes.subscription(from_earliest=False)) as subscription:
            assert [claim.message.value for claim in await claim_some(subscription, 1)] == [b"v3"]

    async def test_recorded_attempts_survive_a_restart(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(2))
        async with broker.subscribe(boxes.subscription()) as subscription:
            first, second = await claim_some(subscription, 2)
            subscription.record_attempt(first, 3, 1_700_000_000_123)
            await subscription.settle(second, Delivered())
        async with broker.subscribe(boxes.subscription()) as subscription:
            (again,) = await claim_some(subscription, 1)
            assert again.message.value == b"v0"
            assert (again.attempts, again.first_failed_at) == (3, 1_700_000_000_123)

    async def test_a_buried_letter_is_in_the_dead_box_once(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(3))
        async with broker.subscribe(boxes.subscription()) as subscription:
            claims = await claim_some(subscription, 3)
            letter = Message(claims[1].message.key, claims[1].message.value, (("why", b"broken"),))
            await asyncio.gather(
                subscription.settle(claims[0], Delivered()),
                subscription.settle(claims[1], Buried(boxes.dead, letter)),
                subscription.settle(claims[2], Discarded()),
            )
        (found,) = await read_all(broker, boxes.dead)
        assert (found.message.key, found.message.value, found.message.headers) == (b"k1", b"v1", letter.headers)
        async with broker.subscribe(boxes.subscription()) as subscription:
            assert await subscription.claim(1) == []

    async def test_a_letter_that_cannot_be_buried_remains_claimed(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(2))
        async with broker.subscribe(boxes.subscription()) as subscription:
            first, second = await claim_some(subscription, 2)
            with pytest.raises(BoxMissing):
                await subscription.settle(first, Buried(fresh("nowhere"), first.message))
            assert subscription.holds(first)
            await subscription.settle(second, Delivered())
            await subscription.settle(first, Buried(boxes.dead, first.message))
        assert await values(broker, boxes.dead) == [b"v0"]
        async with broker.subscribe(boxes.subscription()) as subscription:
            assert await subscription.claim(1) == []

    async def test_a_parked_letter_is_claimed_when_due(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(2))
        async with broker.subscribe(boxes.subscription()) as subscription:
            first, second = await claim_some(subscription, 2)
            subscription.record_attempt(first, 2, 1_700_000_000_000)
            await subscription.settle(first, Parked(first.message, now_ms() + 300))
            await subscription.settle(second, Parked(second.message, now_ms() + 3_600_000))
            (due,) = await claim_some(subscription, 1)
            assert due.parked
            assert due.message.value == b"v0"
            assert (due.attempts, due.first_failed_at) == (2, 1_700_000_000_000)
            while not subscription.parked_letters:
                assert await subscription.claim(1) == []
            subscription.record_attempt(due, 3, 1_700_000_000_000)
            await subscription.settle(due, Parked(due.message, now_ms() + 100))
            (again,) = await claim_some(subscription, 1)
            assert again.attempts == 3
            await subscription.settle(again, Buried(boxes.dead, again.message))
            assert await subscription.claim(1) == []
        assert await values(broker, boxes.dead) == [b"v0"]

    async def test_due_letters_and_messages_of_the_source_are_claimed_together(
        self, broker: Broker, fresh: MakeName
    ) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(6))
        async with broker.subscribe(boxes.subscription()) as subscription:
            for claim in await claim_some(subscription, 6):
                await subscription.settle(claim, Parked(claim.message, now_ms()))
            await publish_all(broker, boxes.source, [Message(b"new", f"new-{n}".encode()) for n in range(6)])
            claims: list[Claim] = []
            async with asyncio.timeout(60):
                while len(claims) < 12:
                    found = await subscription.claim(4, due_limit=1)
                    assert sum(claim.parked for claim in found) <= 1
                    claims += found
            assert sum(claim.parked for claim in claims) == 6
            await settle_all(subscription, claims)

    async def test_a_parked_letter_survives_a_restart(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, numbered_messages(2))
        async with broker.subscribe(boxes.subscription()) as subscription:
            for claim in await claim_some(subscription, 2):
                await subscription.settle(claim, Parked(claim.message, now_ms()))
            (due,) = await claim_some(subscription, 1)
            await subscription.settle(due, Delivered())
        async with broker.subscribe(boxes.subscription()) as subscription:
            (left,) = await claim_some(subscription, 1)
            assert {due.message.value, left.message.value} == {b"v0", b"v1"}
            await subscription.settle(left, Delivered())
        async with broker.subscribe(boxes.subscription()) as subscription:
            assert await subscription.claim(1) == []

    async def test_claims_respect_the_limit_of_bytes(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, [Message(b"k", bytes(LARGE)) for _ in range(12)])
        async with broker.subscribe(boxes.subscription()) as subscription:
            claims = await self.claim_with_byte_limit(subscription, 12)
            due, early = now_ms() + 2_000, list[Claim]()
            await asyncio.gather(*(subscription.settle(claim, Parked(claim.message, due)) for claim in claims))
            while subscription.parked_letters < 12 and now_ms() < due:
                early += await subscription.claim(1, 1)
            await settle_all(subscription, early + await self.claim_with_byte_limit(subscription, 12 - len(early)))

    async def claim_with_byte_limit(self, subscription: Subscription, count: int) -> list[Claim]:
        claims: list[Claim] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(claims) < count:
                found = await subscription.claim(count, 2 * LARGE)
                assert len(found) <= 3  # the last claim may exceed the limit
                claims += found
        return claims

    async def test_a_letter_replayed_into_the_retry_box_is_claimed(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(1))
        letters = await read_all(broker, boxes.dead)
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            publication = Publication(boxes.retry, letters[0].message, letters[0].place, due_at=now_ms())
            await writer.commit(
                CommitBatch(progress_of(letters), [publication], {SettledAs.Replayed: [letters[0].place.offset]})
            )
        async with broker.subscribe(boxes.subscription()) as subscription:
            (claim,) = await claim_some(subscription, 1)
            assert (claim.message.value, claim.parked, claim.attempts) == (b"v0", True, 0)
            await subscription.settle(claim, Delivered())

    async def test_the_status_of_a_courier_is_swept(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        monitor = broker.monitor()
        status = WorkerStatus(
            "pod-0", circuit="Open", paused="CircuitOpen", message="5 in a row", parked=2, at=now_ms()
        )
        try:
            async with broker.subscribe(boxes.subscription()) as subscription:
                await subscription.report_status(status)
                assert (await self.stats(monitor, boxes)).couriers == (status,)
        finally:
            await monitor.close()
