"""A courier whose producer is fenced although the partition is still its own: it takes the partition up anew."""

import asyncio
from collections import Counter
from unittest.mock import patch

import pytest
from aiohttp import web

from deadletter.brokers.errors import Fenced, NotAuthorised
from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.kafka.subscription import membership
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.kafka.subscription.source_partition import SourcePartition
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.workers.courier.main import subscription_spec
from tests.workers.couriers import QUICK, message
from tests.workers.services import Received, serving, until
from tests.workers.wires import Wire

pytestmark = pytest.mark.parametrize("wire", ["kafka"], indirect=True)


async def fence(wire: Wire, name: str) -> None:
    """Do what a courier that lost its partitions may do a moment too late: open their transactional ids."""
    assert isinstance(wire.broker, KafkaBroker)
    for partition in range(2):
        await (await TransactionalProducer.open(wire.broker._line, f"dlq.{wire.prefix}{name}.{partition}")).close()


def bad_are_refused(one: Received) -> web.Response:
    return web.Response(status=422 if one.body.startswith(b"bad") else 200)


async def test_a_fenced_owner_goes_on_burying_and_delivers_nothing_twice(wire: Wire):
    async with serving(bad_are_refused) as service:
        told = wire.assignment(service.url)
        async with wire.courier(told):
            await wire.send(*(message(f"good-{n}", f"k{n}") for n in range(10)))
            await until(lambda: len(service.received) >= 10)
            for turn in range(2):
                await fence(wire, f"orders.{told.group}")
                await wire.send(*(message(f"bad-{turn}-{n}", f"k{n}") for n in range(10)))
                await wire.until_buried(10 * (turn + 1))
    bad = [f"bad-{turn}-{n}".encode() for turn in range(2) for n in range(10)]
    assert Counter(taken.message.value for taken in await wire.buried()) == Counter(bad)
    assert Counter(service.bodies) == Counter([*bad, *(f"good-{n}".encode() for n in range(10))])


async def test_parked_letters_of_a_fenced_owner_come_back_and_are_buried_once(wire: Wire):
    policy = {**QUICK, "maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "1s"}}
    async with serving(lambda _: web.Response(status=503)) as service:
        told = wire.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        async with wire.courier(told):
            await wire.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
            for attempts in (10, 20):
                await until(lambda attempts=attempts: len(service.received) >= attempts)
                await fence(wire, "retry")
            await wire.until_buried(10)
    letters = Counter(taken.message.value for taken in await wire.buried())
    assert letters == Counter(f"m{n}".encode() for n in range(10))
    attempts = Counter((one.body, one.headers["Dlq-Attempt"]) for one in service.received)
    assert attempts == Counter((f"m{n}".encode(), str(attempt)) for n in range(10) for attempt in (1, 2, 3))


@pytest.mark.parametrize("kind", [SourcePartition, RetryPartition])
async def test_a_fence_while_a_partition_is_opened_is_not_the_end(wire: Wire, kind: type):
    recover, fences = kind.recover, []

    async def fenced_at_first(partition) -> None:
        if len(fences) < 4:
            fences.append(partition)
            raise Fenced("another one took over")
        await recover(partition)

    policy = {**QUICK, "maxAttempts": 2}
    async with serving(lambda _: web.Response(status=503)) as service:
        told = wire.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        with patch.object(kind, "recover", fenced_at_first):
            async with wire.courier(told):
                await wire.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
                await wire.until_buried(10)
    assert Counter(taken.message.value for taken in await wire.buried()) == Counter(f"m{n}".encode() for n in range(10))


async def test_one_of_an_earlier_generation_opens_no_partition_and_joins_anew(wire: Wire):
    spec = subscription_spec(wire.assignment("http://shop.test/"), "pod-0")
    async with wire.broker.subscribe(spec) as desk, asyncio.timeout(120):
        consumer = desk._consumer
        (one, *_) = consumer.assignment()
        await membership.confirm_assignment(consumer, one)
        consumer._coordinator.generation -= 1  # what it remembers after it slept through a rebalance
        with pytest.raises(Fenced):
            await membership.confirm_assignment(consumer, one)
        await wire.send(message())
        while not await desk.claim(10):
            pass


async def test_what_keeps_a_partition_shut_is_said_and_heals(wire: Wire):
    async def refused(_: SourcePartition) -> None:
        raise NotAuthorised("the broker does not allow it")

    async def claim_on(desk) -> list:
        while not (claims := await desk.claim(10)):
            pass
        return claims

    spec = subscription_spec(wire.assignment("http://shop.test/"), "pod-0")
    async with wire.broker.subscribe(spec) as desk, asyncio.timeout(120):
        await wire.send(message())
        with patch.object(SourcePartition, "recover", refused):
            assigned = desk._consumer.assignment()
            await desk.on_partitions_revoked(assigned)
            await desk.on_partitions_assigned(assigned)
            with pytest.raises(NotAuthorised):
                await claim_on(desk)
        while True:
            try:
                assert len(await claim_on(desk)) == 1
                break
            except NotAuthorised:
                continue
