"""A courier dies between publishing a letter and settling its claim; whoever comes next would decide otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis import leases
from deadletter.brokers.redis.keys import due, identity
from deadletter.brokers.types import Buried, Claim, Delivered, Discarded, Parked, Settlement
from deadletter.clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, no_secrets, redis_at
from tests.brokers.helpers import Boxes, claim_some, make_boxes, numbered_messages, publish_all, values

BROKER = "redis"
Verdict = Callable[[Boxes, Claim], Settlement]
VERDICTS: dict[str, Verdict] = {
    "delivered": lambda boxes, claim: Delivered(),
    "discarded": lambda boxes, claim: Discarded(),
    "parked": lambda boxes, claim: Parked(claim.message, now_ms() + 3_600_000),
    "buried": lambda boxes, claim: Buried(boxes.dead, claim.message),
    "routed": lambda boxes, claim: Buried(boxes.target, claim.message),
}
PUBLISHED = ("parked", "buried", "routed")
COUNT = 8


@asynccontextmanager
async def dying(redis: str, boxes: Boxes) -> AsyncIterator[Subscription]:
    """A desk whose process ends before any claim is settled."""
    async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker:
        opened = broker.subscribe(boxes.subscription("pod-0"))  # never left: nothing is given back
        subscription = await opened.__aenter__()

        async def end(_: Sequence[object]) -> list[int]:
            raise BrokerUnreachable("killed")

        subscription._committer._acknowledge = subscription._committer._settle_due = end  # type: ignore[attr-defined]
        yield subscription
        subscription._background.cancel()  # type: ignore[attr-defined]


async def settle_in_vain(subscription: Subscription, boxes: Boxes, claims: list[Claim], verdict: str) -> None:
    wishes = (subscription.settle(claim, VERDICTS[verdict](boxes, claim)) for claim in claims)
    outcomes = await asyncio.gather(*wishes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BrokerUnreachable}


async def go_on(broker: Broker, boxes: Boxes, pod: str, verdict: str) -> list[bytes | None]:
    """What the next courier was given, and settled in its own way."""
    given: list[Claim] = []
    async with broker.subscribe(boxes.subscription(pod)) as subscription:
        while some := await subscription.claim(COUNT):
            given += some
            await asyncio.gather(*(subscription.settle(claim, VERDICTS[verdict](boxes, claim)) for claim in some))
    return [claim.message.value for claim in given]


async def copies(broker: Broker, client: Redis, boxes: Boxes) -> dict[str, int]:
    """Letters per box."""
    return {
        "parked": await client.hlen(boxes.retry) - 1,  # its first field counts
        "buried": len(await values(broker, boxes.dead)),
        "routed": len(await values(broker, boxes.target)),
    }


@pytest.mark.parametrize("second", VERDICTS)
@pytest.mark.parametrize("first", PUBLISHED)
async def test_what_was_published_of_a_message_before_a_kill_is_all_that_becomes_of_it(
    redis: str, broker: Broker, client: Redis, first: str, second: str
) -> None:
    boxes = await make_boxes(broker, fresh_name("{verdict}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with dying(redis, boxes) as subscription:
        *judged, _ = await claim_some(subscription, COUNT)
        await settle_in_vain(subscription, boxes, judged, first)
    given = await go_on(broker, boxes, "pod-0", second)
    assert given == [b"v7"]
    found = await copies(broker, client, boxes)
    assert found.pop(first) == COUNT - (second != first)
    assert sum(found.values()) == (second != first and second in PUBLISHED)
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_a_message_taken_over_is_not_delivered_when_its_letter_lies_in_a_box(
    redis: str, broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("{over}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with dying(redis, boxes) as subscription:
        claims = await claim_some(subscription, COUNT)
        subscription.record_attempt(claims[0], 2, now_ms())
        await subscription._flush_attempts()  # type: ignore[attr-defined]
        await settle_in_vain(subscription, boxes, claims, "parked")
    ids = [claim.place.id for claim in claims]
    await client.xclaim(boxes.source, boxes.group, "pod-0", 0, ids, idle=leases.LEASE_MS + 1, justid=True)
    assert await go_on(broker, boxes, "pod-1", "buried") == []
    assert await copies(broker, client, boxes) == {"parked": COUNT, "buried": 0, "routed": 0}
    beside = [key async for key in client.scan_iter(f"{boxes.source}.{boxes.group}.*")]
    assert beside == []  # neither notes nor marks


@pytest.mark.parametrize("second", VERDICTS)
@pytest.mark.parametrize("first", ["buried", "routed"])
async def test_what_was_published_of_a_waiting_letter_before_a_kill_is_all_that_becomes_of_it(
    redis: str, broker: Broker, client: Redis, first: str, second: str
) -> None:
    boxes = await make_boxes(broker, fresh_name("{verdict}"))
    await publish_all(broker, boxes.source, numbered_messages(COUNT))
    async with broker.subscribe(boxes.subscription("pod-0")) as subscription:
        claims = await claim_some(subscription, COUNT)
        await asyncio.gather(*(subscription.settle(claim, Parked(claim.message, 0)) for claim in claims))
    async with dying(redis, boxes) as subscription:
        claims = await claim_some(subscription, COUNT)
        assert all(claim.parked for claim in claims)
        await settle_in_vain(subscription, boxes, claims, first)
    await client.zadd(due(boxes.retry), {claim.place.id: 0 for claim in claims})  # the lease ran out
    assert await go_on(broker, boxes, "pod-1", second) == []
    assert await copies(broker, client, boxes) == {"parked": 0, "buried": 0, "routed": 0} | {first: COUNT}
    beside = [key async for key in client.scan_iter(f"{boxes.retry}.*")]
    assert beside == [identity(boxes.retry).encode()]  # neither due nor held nor marked


async def test_a_letter_whose_publication_was_not_heard_of_is_not_laid_back(
    redis: str, broker: Broker, client: Redis
) -> None:
    boxes = await make_boxes(broker, fresh_name("{unheard}"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with dying(redis, boxes) as dead_subscription, broker.subscribe(boxes.subscription("pod-0")) as subscription:
        (claim,) = await claim_some(subscription, 1)
        await subscription.settle(claim, Parked(claim.message, 0))
        (waiting,) = await claim_some(subscription, 1)
        await settle_in_vain(dead_subscription, boxes, [waiting], "buried")
        await subscription.settle(waiting, Parked(waiting.message, 0))
        assert await subscription.claim(1) == []
    assert await copies(broker, client, boxes) == {"parked": 0, "buried": 1, "routed": 0}
