"""A broker user with only the rights that the docs name can do everything that a queue needs."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from redis.asyncio import Redis

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.wall_clock import monotonic_ms, now_ms
from deadletter.workers import exit_status
from tests.bed import beds, places
from tests.brokers.connections import kafka_at, redis_at
from tests.brokers.helpers import TIMEOUT_S
from tests.brokers.redis_servers import HERE, own_redis, url_of
from tests.brokers.secured_kafka import (
    ALLOW,
    GROUP,
    PASSWORD,
    TOPIC,
    TRANSACTIONAL_ID,
    SecuredKafka,
    grant_acl,
    open_secured_kafka,
    revoke_acl,
)
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, message, no_secret
from tests.workers.http_service import Received, serving, until
from tests.workers.replay_scene import Scene, letter

PAGE = (places.REPOSITORY / "docs" / "guides" / "secure.md").read_text()
GUARANTEES = (places.REPOSITORY / "docs" / "concepts" / "guarantees.md").read_text()
SECTION = PAGE.split("## The broker's side")[1]
# ACL operations as numbered by Kafka.
OPERATIONS = {
    "Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Alter": 7, "Describe": 8, "DescribeConfigs": 10,
    "AlterConfigs": 11,
}  # fmt: skip
SOURCE, GROUPS, BOXES, IDS, TARGET = (
    "the source topic", "the source's consumer group", "dead box, retry box, ledger",
    "transactional ids that begin with `dlq.`", "the topic a Replay or a redrive sends to",
)  # fmt: skip
POLICY = {
    "maxAttempts": 5, "backoff": {"strategy": "Fixed", "initial": "10ms", "max": "10ms"},
    "circuitBreaker": {"enabled": False},
}  # fmt: skip


def documented() -> dict[str, list[str]]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
    return {on: operations.split(", ") for on, operations in rows[2:]}


def test_the_page_names_operations_of_kafka() -> None:
    assert set(documented()) == {SOURCE, GROUPS, BOXES, IDS, TARGET}
    assert {word for words in documented().values() for word in words} <= OPERATIONS.keys()


class RestrictedUser:
    """A user without rights, to whom a test grants some."""

    def __init__(self, secured: SecuredKafka, prefix: str) -> None:
        self.secured, self.prefix, self.given = secured, prefix, list[tuple[int, tuple[int, str]]]()
        sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
        tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
        wanted = {"kafka": {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl}}
        self.spec = BrokerConnectionSpec.model_validate(wanted)

    def secret(self, _: str, key: str) -> bytes:
        authority = (self.secured.files / "ca.crt").read_bytes()
        return {"username": b"guest", "password": PASSWORD.encode(), "ca.crt": authority}[key]

    async def grant(self, on: str, *resources: tuple[int, str]) -> None:
        """Grant the operations that the page names for this kind of resource."""
        for word in documented()[on]:
            for resource in resources:
                await grant_acl(self.secured, ALLOW, OPERATIONS[word], resource)
                self.given.append((OPERATIONS[word], resource))

    async def revoke_all(self) -> None:
        for number, resource in self.given:
            await revoke_acl(self.secured, ALLOW, number, resource)


@pytest.fixture
async def guest(bed: beds.Bed) -> AsyncIterator[RestrictedUser]:
    made = RestrictedUser(open_secured_kafka(bed), f"right-{uuid.uuid4().hex[:10]}.")
    yield made
    await made.revoke_all()


@pytest.fixture
async def brokers(guest: RestrictedUser) -> AsyncIterator[tuple[Broker, Broker]]:
    """Open one broker as administrator and one as the restricted user."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(open_broker(kafka_at(guest.secured.plain), no_secret, LOOPBACK))
        yield admin, await stack.enter_async_context(open_broker(guest.spec, guest.secret, LOOPBACK))


async def until_allowed(broker: Broker, spec: BoxSpec) -> None:
    """Wait until the broker applies the granted rights, which it does in order and with a delay."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await broker.ensure(spec)
            except BrokerError:
                await asyncio.sleep(0.1)
            else:
                return


def respond(one: Received) -> web.Response:
    """Accept good messages, reject bad ones, and accept late ones at the third attempt."""
    if one.body.startswith(b"bad"):
        return web.Response(status=422)
    late = one.body.startswith(b"late") and int(one.headers["Dlq-Attempt"]) < 3
    return web.Response(status=503 if late else 200)


async def run_queue(sender: BrokerQueue, queue: BrokerQueue, parked: Callable[[], Awaitable[bool]]) -> None:
    """Deliver, bury and retry until `parked` accepts the state of the retry box; then a sweep counts the letters."""
    dead, retry = f"{queue.prefix}dead", f"{queue.prefix}retry"
    async with serving(respond) as service:
        assignment = queue.assignment(service.url, policy=POLICY, delivery={"inlineLimit": "0s"})
        async with queue.courier(assignment) as courier:
            await sender.send(*(message(f"{kind}{n}", f"k{n}") for n in range(9) for kind in ("good", "bad", "late")))
            await until(lambda: len(service.received) == 9 + 9 + 27)
            await sender.until_buried(9)
            async with asyncio.timeout(TIMEOUT_S):
                while not await parked():
                    await sender.send(message("late", "k"))
                    await asyncio.sleep(0.2)
            assert courier.gate.pause_reason(monotonic_ms()) == ("", "")
    registers = queue.broker.monitor()
    async with asyncio.timeout(TIMEOUT_S):
        reading = None
        while not isinstance(reading, BoxStats) or not reading.caught_up:
            reading = (await registers.sweep([MonitoredBox(dead, f"{dead}.ledger", retry)], now_ms()))[dead]
    await registers.close()
    assert reading.depth == 9


@pytest.mark.server
async def test_the_rights_of_the_docs_are_enough_for_a_queue_with_delivery(
    guest: RestrictedUser, brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "TRIM_INTERVAL_S", 0.0)
    admin, own = brokers
    name = guest.prefix
    await admin.ensure(BoxSpec(f"{name}orders", 2, 1))
    await guest.grant(SOURCE, (TOPIC, f"{name}orders"))
    await guest.grant(GROUPS, (GROUP, f"{name}billing"))
    await guest.grant(IDS, (TRANSACTIONAL_ID, f"dlq.{name}"))
    await guest.grant(BOXES, (TOPIC, f"{name}dead"), (TOPIC, f"{name}retry"))
    await until_allowed(own, BoxSpec(f"{name}retry", 2, 1, retention_ms=-1, is_retry_box=True))
    await own.ensure(BoxSpec(f"{name}dead", 1, 1, retention_ms=86_400_000))
    await own.ensure(BoxSpec(f"{name}dead", 2, 1, retention_ms=172_800_000))

    async def trimmed() -> bool:
        return any(span.start for span in await own.window(f"{name}retry"))

    await run_queue(
        BrokerQueue(admin, kafka_at(guest.secured.plain), name), BrokerQueue(own, guest.spec, name), trimmed
    )


@pytest.mark.server
async def test_the_user_of_the_docs_is_enough_on_redis(tmp_path: Path) -> None:
    sentence = GUARANTEES.split("### The user that we need")[1].split("##")[0].split("; on the keys")[0]
    commands = [f"+{word.lower().replace(' ', '|')}" for word in re.findall(r"`([^`]+)`", sentence)]
    name = f"{{{uuid.uuid4().hex[:10]}}}."
    with own_redis(tmp_path) as port:
        given = {"username": b"courier", "password": b"secret"}
        mine = BrokerConnectionSpec.model_validate({"redis": {"url": url_of(port), "secretRef": {"name": "user"}}})
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Redis(host=HERE, port=port))
            keys = (f"~{name}*", "~{dlq-operator}.server")
            await client.execute_command("ACL", "SETUSER", "courier", "on", ">secret", *keys, *commands)
            admin = await stack.enter_async_context(open_broker(redis_at(url_of(port)), no_secret, LOOPBACK))
            own = await stack.enter_async_context(open_broker(mine, lambda _, key: given[key], LOOPBACK))
            assert (await own.server_info()).kind == "Redis"
            sender, queue = BrokerQueue(admin, redis_at(url_of(port)), name), BrokerQueue(own, mine, name)
            await sender.create()
            await queue.create()

            async def content() -> bool:
                return True

            await run_queue(sender, queue, content)
            scene = Scene(own, f"{name}orders", mine.to_wire())
            await scene.build()
            await scene.bury(*(letter(number, scene.name) for number in range(12)))
            ending = await scene.replay()
            assert (ending.code, ending.reason) == (exit_status.FINISHED, "AllReplayed"), ending


@pytest.mark.server
async def test_the_rights_of_the_docs_are_enough_for_a_replay_to_the_origin(
    guest: RestrictedUser, brokers: tuple[Broker, Broker]
) -> None:
    admin, own = brokers
    scene = Scene(admin, f"{guest.prefix}payments", guest.spec.to_wire())
    await scene.build()
    await scene.bury(*(letter(number, scene.name) for number in range(12)))
    await guest.grant(TARGET, (TOPIC, scene.name))
    await guest.grant(IDS, (TRANSACTIONAL_ID, f"dlq.{guest.prefix}"))
    await guest.grant(BOXES, (TOPIC, scene.boxes.dead))
    await until_allowed(own, BoxSpec(scene.boxes.dead, 1, adopt=True))
    scene.broker = own
    ending = await scene.replay()
    assert (ending.code, ending.reason) == (exit_status.FINISHED, "AllReplayed"), ending
    scene.broker = admin
    assert sorted(await scene.numbers()) == list(range(12))
