"""A dead box without write rights or memory: nothing is settled, the status says why, and the courier recovers."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import NotAuthorised
from deadletter.wall_clock import monotonic_ms
from deadletter.workers.courier.courier import Courier
from tests.bed import beds
from tests.brokers.connections import kafka_at, redis_at
from tests.brokers.helpers import TIMEOUT_S
from tests.brokers.redis_servers import HERE, own_redis, url_of
from tests.brokers.secured_kafka import (
    ALL_OPERATIONS,
    ALLOW,
    DENY,
    GROUP,
    PASSWORD,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    SecuredKafka,
    grant_acl,
    open_secured_kafka,
    revoke_acl,
)
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message, no_secret
from tests.workers.http_service import Received, Service, serving, until

pytestmark = pytest.mark.server

Step = Callable[[], Awaitable[None]]
COUNT = 12


@dataclass
class Stage:
    """A queue seen with every right (`queue`) and as its courier sees it (`own`), and how to block its dead box."""

    queue: BrokerQueue
    own: BrokerQueue
    reason: str
    block: Step
    open: Step


@asynccontextmanager
async def two_views(
    everything: BrokerConnectionSpec, mine: BrokerConnectionSpec, secrets: Callable[[str, str], bytes]
) -> AsyncIterator[tuple[BrokerQueue, BrokerQueue]]:
    tag = uuid.uuid4().hex[:10]
    prefix = f"{{{tag}}}." if everything.is_redis else f"refusing-{tag}."
    async with (
        open_broker(everything, no_secret, allow=LOOPBACK) as broker,
        open_broker(mine, secrets, allow=LOOPBACK) as own,
    ):
        queue = BrokerQueue(broker, everything, prefix)
        await queue.create()
        yield queue, BrokerQueue(own, mine, prefix)


async def until_allowed(broker: Broker, box: str) -> None:
    """Wait until the broker applies the rights; brokers apply them in order, with a delay."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await broker.describe([box])
            except NotAuthorised:
                await asyncio.sleep(0.1)
            else:
                return


@asynccontextmanager
async def read_only_topic(bed: beds.Bed, _: Path) -> AsyncIterator[Stage]:
    """A Kafka user with every right except writing to the dead topic."""
    secured: SecuredKafka = open_secured_kafka(bed)
    given = {"username": b"guest", "password": PASSWORD.encode(), "ca.crt": (secured.files / "ca.crt").read_bytes()}
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    mine = {"kafka": {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl}}
    spec = BrokerConnectionSpec.model_validate(mine)
    async with two_views(kafka_at(secured.plain), spec, lambda _, key: given[key]) as (queue, own):
        name = queue.prefix
        everywhere = (GROUP, name.strip(".")), (TRANSACTIONAL_ID, f"dlq.{name}"), (TOPIC, name)
        await grant_acl(secured, ALLOW, ALL_OPERATIONS, *everywhere)
        await until_allowed(own.broker, f"{name}dead")
        dead = (TOPIC, f"{name}dead")
        yield Stage(
            queue,
            own,
            "NotAuthorised",
            lambda: grant_acl(secured, DENY, WRITE, dead),
            lambda: revoke_acl(secured, DENY, WRITE, dead),
        )


@asynccontextmanager
async def read_only_stream(_: beds.Bed, folder: Path) -> AsyncIterator[Stage]:
    """A Redis user without rights on the dead stream."""
    with own_redis(folder) as port:
        admin = Redis(host=HERE, port=port)

        async def allow(*keys: str) -> None:
            await admin.execute_command("ACL", "SETUSER", "courier", "on", ">secret", "+@all", "resetkeys", *keys)

        await allow("~*")
        mine = BrokerConnectionSpec.model_validate({"redis": {"url": url_of(port), "secretRef": {"name": "user"}}})
        given = {"username": b"courier", "password": b"secret"}
        async with two_views(redis_at(url_of(port)), mine, lambda _, key: given[key]) as (queue, own):
            boxes = ("~*orders*", "~*retry*", "~*ledger*")
            yield Stage(queue, own, "NotAuthorised", lambda: allow(*boxes), lambda: allow("~*"))
        await admin.aclose()


@asynccontextmanager
async def full_redis(_: beds.Bed, folder: Path) -> AsyncIterator[Stage]:
    """A Redis that is out of memory."""
    with own_redis(folder) as port:
        admin = Redis(host=HERE, port=port)

        async def limit(maxmemory: str) -> None:
            await admin.config_set("maxmemory", maxmemory)

        spec = redis_at(url_of(port))
        async with two_views(spec, spec, no_secret) as (queue, own):
            yield Stage(queue, own, "BoxRefused", lambda: limit("1"), lambda: limit("0"))
        await admin.aclose()


@pytest.fixture(params=[read_only_topic, read_only_stream, full_redis], ids=lambda make: make.__name__)
async def stage(request: pytest.FixtureRequest, bed: beds.Bed, tmp_path: Path) -> AsyncIterator[Stage]:
    async with request.param(bed, tmp_path) as made:
        yield made


def pause_of(courier: Courier) -> str:
    return courier.gate.pause_reason(monotonic_ms())[0]


def refusals(reason: str) -> float:
    found = {"namespace": "test", "queue": "orders", "reason": reason}
    return REGISTRY.get_sample_value("dlq_settlements_refused_total", found) or 0.0


class Refusing:
    """A service that refuses every message, all but the first after the dead box is blocked."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def __call__(self, one: Received) -> web.Response:
        if one.body != b"first":
            await self.may.wait()
        return web.Response(status=422)


async def block_after_first_letter(stage: Stage, service: Service, courier: Courier) -> None:
    """Wait until one letter is buried, then block the box for the others."""
    before = refusals(stage.reason)
    await stage.queue.send(message("first", "k"))
    await stage.queue.until_buried(1)
    await stage.queue.send(*(message(f"m{n}", f"k{n}") for n in range(COUNT)))
    await until(lambda: len(service.received) == COUNT + 1)
    await stage.block()
    assert isinstance(service.answer, Refusing)
    service.answer.may.set()
    await until(lambda: pause_of(courier) == stage.reason)
    assert refusals(stage.reason) > before
    assert len(await stage.queue.buried()) == 1


async def buried(queue: BrokerQueue) -> "Counter[bytes | None]":
    return Counter(taken.message.value for taken in await queue.buried())


async def test_a_blocked_dead_box_pauses_the_courier_until_it_is_unblocked(stage: Stage):
    queue, own = stage.queue, stage.own
    async with serving(Refusing()) as service, own.courier(own.assignment(service.url)) as courier:
        await block_after_first_letter(stage, service, courier)
        await stage.open()
        await queue.until_buried(COUNT + 1)
        await until(lambda: not pause_of(courier))
        await queue.send(message("last", "k"))
        await queue.until_buried(COUNT + 2)
    assert await buried(queue) == Counter([b"first", b"last", *(f"m{n}".encode() for n in range(COUNT))])
    assert len(service.received) == COUNT + 2  # what waited for its box was not delivered again


async def test_messages_refused_by_a_dead_box_are_delivered_again_by_the_next_pod(stage: Stage):
    queue, own = stage.queue, stage.own
    async with serving(Refusing()) as service:
        assignment = own.assignment(service.url)
        async with own.courier(assignment) as courier:
            await block_after_first_letter(stage, service, courier)
        await stage.open()
        async with own.courier(assignment, "pod-1"):
            await queue.until_buried(COUNT + 1)
    assert await buried(queue) == Counter([b"first", *(f"m{n}".encode() for n in range(COUNT))])
    assert all(service.bodies.count(f"m{n}".encode()) == 2 for n in range(COUNT))
