"""A courier is killed between publishing a letter and settling its claim; its successor would decide otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis import claim_leases
from deadletter.brokers.redis.keys import due, identity
from deadletter.brokers.types import Buried, Claim, Delivered, Discarded, Parked, Settlement
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import Boxes, claim_some, make_boxes, numbered_messages, publish_all, values

BROKER = "redis"
MakeSettlement = Callable[[Boxes, Claim], Settlement]
SETTLEMENTS: dict[str, MakeSettlement] = {
    "delivered": lambda boxes, claim: Delivered(),
    "discarded": lambda boxes, claim: Discarded(),
    "parked": lambda boxes, claim: Parked(claim.message, now_ms() + 3_600_000),
    "buried": lambda boxes, claim: Buried(boxes.dead, claim.message),
    "routed": lambda boxes, claim: Buried(boxes.target, claim.message),
}
PUBLISHED = ("parked", "buried", "routed")
COUNT = 8


@asynccontextmanager
async def killed_before_settling(redis: str, boxes: Boxes) -> AsyncIterator[Subscription]:
    """A subscription whose process ends after publishing and before settling."""
    async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker:
        opened = broker.subscribe(boxes.subscription("pod-0"))  # never closed: no claim is released
        subscription = await opened.__aenter__()

        async def end(_: Sequence[object]) -> list[int]:
            raise BrokerUnreachable("killed")

        subscription._settlement_writer._acknowledge = subscription._settlement_writer._settle_due = end  # type: ignore[attr-defined]
        yield subscription
        subscription._background.cancel()  # type: ignore[attr-defined]


async def settle_and_die(subscription: Subscription, boxes: Boxes, claims: list[Claim], kind: str) -> None:
    settlements = (subscription.settle(claim, SETTLEMENTS[kind](boxes, claim)) for claim in claims)
    outcomes = await asyncio.gather(*settlements, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BrokerUnreachable}


async def claim_and_settle_all(broker: Broker, boxes: Boxes, pod: str, kind: str) -> list[bytes | None]:
    """Let the next courier settle in its own way; return the values it was given."""
    given: list[Claim] = []
    async with broker.subscribe(boxes.subscription(pod)) as subscription:
        while claims := await subscription.claim(COUNT):
            given += claims
            await asyncio.gather(*(subscription.settle(claim, SETTLEMENTS[kind](boxes, claim)) for claim in claims))
    return [claim.message.value for claim in given]


async def letters_by_settlement(broker: Broker, client: Redis, boxes: Boxes) -> dict[str, int]:
    """Count the letters by what published them."""
    return {
        "parked": await client.hlen(boxes.retry) - 1,  # its first field is a counter
        "buried": len(await values(broker, boxes.dead)),
        "routed": len(await values(broker, boxes.target)),
    }


@pytest.mark.parametrize("second", SETTLEMENTS)
@pytest.mark.parametrize("first", PUBLISHED)
async def test_a_message_published_before_a_kill_is_not_settled_again(
    redis: str, broker: Broker, client: Redis, first: str, second: str
) -> None:
    boxes = await make_boxes(broker, fresh_name("{killed}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with killed_before_settling(redis, boxes) as subscription:
        *published, _ = await claim_some(subscription, COUNT)
        await settle_and_die(subscription, boxes, published, first)
    given = await claim_and_settle_all(broker, boxes, "pod-0", second)
    assert given == [b"v7"]
    found = await letters_by_settlement(broker, client, boxes)
    assert found.pop(first) == COUNT - (second != first)
    assert sum(found.values()) == (second != first and second in PUBLISHED)
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_a_message_that_is_taken_over_is_not_delivered_if_its_letter_is_published(
    redis: str, broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("{taken}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with killed_before_settling(redis, boxes) as subscription:
        claims = await claim_some(subscription, COUNT)
        subscription.record_attempt(claims[0], 2, now_ms())
        await subscription._flush_attempts()  # type: ignore[attr-defined]
        await settle_and_die(subscription, boxes, claims, "parked")
    ids = [claim.place.id for claim in claims]
    await client.xclaim(boxes.source, boxes.group, "pod-0", 0, ids, idle=claim_leases.LEASE_MS + 1, justid=True)
    assert await claim_and_settle_all(broker, boxes, "pod-1", "buried") == []
    assert await letters_by_settlement(broker, client, boxes) == {"parked": COUNT, "buried": 0, "routed": 0}
    siblings = [key async for key in client.scan_iter(f"{boxes.source}.{boxes.group}.*")]
    assert siblings == []  # neither attempts nor marks


@pytest.mark.parametrize("second", SETTLEMENTS)
@pytest.mark.parametrize("first", ["buried", "routed"])
async def test_a_parked_letter_published_before_a_kill_is_not_settled_again(
    redis: str, broker: Broker, client: Redis, first: str, second: str
) -> None:
    boxes = await make_boxes(broker, fresh_name("{killed}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with broker.subscribe(boxes.subscription("pod-0")) as subscription:
        claims = await claim_some(subscription, COUNT)
        await asyncio.gather(*(subscription.settle(claim, Parked(claim.message, 0)) for claim in claims))
    async with killed_before_settling(redis, boxes) as subscription:
        claims = await claim_some(subscription, COUNT)
        assert all(claim.parked for claim in claims)
        await settle_and_die(subscription, boxes, claims, first)
    await client.zadd(due(boxes.retry), {claim.place.id: 0 for claim in claims})  # the lease has expired
    assert await claim_and_settle_all(broker, boxes, "pod-1", second) == []
    assert await letters_by_settlement(broker, client, boxes) == {"parked": 0, "buried": 0, "routed": 0} | {
        first: COUNT
    }
    siblings = [key async for key in client.scan_iter(f"{boxes.retry}.*")]
    assert siblings == [identity(boxes.retry).encode()]  # neither due times nor holders nor marks


async def test_a_letter_with_an_unknown_publication_is_not_parked_again(
    redis: str, broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("{unknown}"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with (
        killed_before_settling(redis, boxes) as dead_subscription,
        broker.subscribe(boxes.subscription("pod-0")) as subscription,
    ):
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Parked(claim.message, 0))
        (parked,) = await claim_some(subscription, 1)
        await settle_and_die(dead_subscription, boxes, [parked], "buried")
        await subscription.settle(parked, Parked(parked.message, 0))
        assert await subscription.claim(1) == []
    assert await letters_by_settlement(broker, client, boxes) == {"parked": 0, "buried": 1, "routed": 0}
