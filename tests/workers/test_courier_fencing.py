"""A courier whose producer is fenced although it still owns the partition: it opens the partition again."""

import asyncio
from collections import Counter
from unittest.mock import patch

import pytest
from aiohttp import web

from deadletter.brokers.errors import Fenced, NotAuthorised
from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.kafka.subscription import group_offsets
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.workers.courier.main import subscription_spec
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until

pytestmark = pytest.mark.parametrize("queue", ["kafka"], indirect=True)


async def fence(queue: BrokerQueue, name: str) -> None:
    """Open the transactional ids, as a courier that has just lost the partitions may still do."""
    assert isinstance(queue.broker, KafkaBroker)
    for partition in range(2):
        await (await TransactionalProducer.open(queue.broker._kafka, f"dlq.{queue.prefix}{name}.{partition}")).close()


def refuse_bad(one: Received) -> web.Response:
    return web.Response(status=422 if one.body.startswith(b"bad") else 200)


async def test_a_fenced_owner_continues_to_bury_and_repeats_no_delivery(queue: BrokerQueue):
    async with serving(refuse_bad) as service:
        assignment = queue.assignment(service.url)
        async with queue.courier(assignment):
            await queue.send(*(message(f"good-{n}", f"k{n}") for n in range(10)))
            await until(lambda: len(service.received) >= 10)
            for turn in range(2):
                await fence(queue, f"orders.{assignment.group}")
                await queue.send(*(message(f"bad-{turn}-{n}", f"k{n}") for n in range(10)))
                await queue.until_buried(10 * (turn + 1))
    bad = [f"bad-{turn}-{n}".encode() for turn in range(2) for n in range(10)]
    assert Counter(taken.message.value for taken in await queue.buried()) == Counter(bad)
    assert Counter(service.bodies) == Counter([*bad, *(f"good-{n}".encode() for n in range(10))])


async def test_parked_letters_of_a_fenced_owner_are_retried_and_buried_once(queue: BrokerQueue):
    policy = {**QUICK, "maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "1s"}}
    async with serving(lambda _: web.Response(status=503)) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        async with queue.courier(assignment):
            await queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
            for attempts in (10, 20):
                await until(lambda attempts=attempts: len(service.received) >= attempts)
                await fence(queue, "retry")
            await queue.until_buried(10)
    letters = Counter(taken.message.value for taken in await queue.buried())
    assert letters == Counter(f"m{n}".encode() for n in range(10))
    attempts = Counter((one.body, one.headers["Dlq-Attempt"]) for one in service.received)
    assert attempts == Counter((f"m{n}".encode(), str(attempt)) for n in range(10) for attempt in (1, 2, 3))


@pytest.mark.parametrize("kind", [SourcePartition, RetryPartition])
async def test_a_courier_fenced_while_it_opens_a_partition_tries_again(queue: BrokerQueue, kind: type):
    recover, fences = kind.recover, []

    async def fenced_at_first(partition) -> None:
        if len(fences) < 4:
            fences.append(partition)
            raise Fenced("another one took over")
        await recover(partition)

    policy = {**QUICK, "maxAttempts": 2}
    async with serving(lambda _: web.Response(status=503)) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        with patch.object(kind, "recover", fenced_at_first):
            async with queue.courier(assignment):
                await queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
                await queue.until_buried(10)
    assert Counter(taken.message.value for taken in await queue.buried()) == Counter(
        f"m{n}".encode() for n in range(10)
    )


async def test_a_member_of_an_earlier_generation_opens_no_partition_and_rejoins(queue: BrokerQueue):
    spec = subscription_spec(queue.assignment("http://shop.test/"), "pod-0")
    async with queue.broker.subscribe(spec) as subscription, asyncio.timeout(120):
        consumer = subscription._consumer
        (one, *_) = consumer.assignment()
        await group_offsets.confirm_assignment(consumer, one)
        consumer._coordinator.generation -= 1  # what it remembers after it slept through a rebalance
        with pytest.raises(Fenced):
            await group_offsets.confirm_assignment(consumer, one)
        await queue.send(message())
        while not await subscription.claim(10):
            pass


async def test_the_reason_of_a_blocked_partition_is_reported_until_it_opens(queue: BrokerQueue):
    async def refused(_: SourcePartition) -> None:
        raise NotAuthorised("the broker does not allow it")

    async def claim_on(subscription) -> list:
        while not (claims := await subscription.claim(10)):
            pass
        return claims

    spec = subscription_spec(queue.assignment("http://shop.test/"), "pod-0")
    async with queue.broker.subscribe(spec) as subscription, asyncio.timeout(120):
        await queue.send(message())
        with patch.object(SourcePartition, "recover", refused):
            assigned = subscription._consumer.assignment()
            await subscription._assignment.on_partitions_revoked(assigned)
            await subscription._assignment.on_partitions_assigned(assigned)
            with pytest.raises(NotAuthorised):
                await claim_on(subscription)
        while True:
            try:
                assert len(await claim_on(subscription)) == 1
                break
            except NotAuthorised:
                continue
