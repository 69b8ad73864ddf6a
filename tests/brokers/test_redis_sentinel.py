"""Redis through its Sentinels: the broker contract, a failover under load, TLS, logins and forbidden addresses."""

import asyncio
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from redis.asyncio import Redis

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import (
    AddressForbidden,
    AuthenticationFailed,
    BoxRefused,
    BrokerUnreachable,
    CertificateRefused,
)
from deadletter.net.secrets import mounted_secrets
from tests.bed import ports, processes, tools
from tests.bed.redis_sentinel import PRIMARY, RedisSentinel
from tests.brokers.broker_contract import BrokerContract
from tests.brokers.connections import LOOPBACK, no_secrets, sentinel_at
from tests.brokers.redis_servers import HERE, own_redis
from tests.certificate_authority import CertificateAuthority
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import Received, serving, until

BROKER = "redis_sentinel"
MESSAGES = 400
CA = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}


class TestRedisSentinel(BrokerContract):
    """The contract on a replicated primary, found through its Sentinels."""


def is_bad(number: int) -> bool:
    return number % 10 == 3


async def test_a_failover_under_load_loses_no_message_and_repeats_no_letter(redis_sentinel: RedisSentinel) -> None:
    delivered: set[int] = set()

    async def answer(request: Received) -> web.Response:
        number = int(request.body)
        await asyncio.sleep(0.02)
        delivered.add(number)
        return web.Response(status=422 if is_bad(number) else 200)

    spec = sentinel_at(redis_sentinel)
    async with open_broker(spec, no_secrets, LOOPBACK) as broker, serving(answer) as service:
        queue = BrokerQueue(broker, spec, f"{{{uuid.uuid4().hex[:10]}}}.")
        await queue.create()
        await queue.send(*(message(f"{n}", f"k{n % 97}") for n in range(MESSAGES)))
        async with Redis.from_url(redis_sentinel.url) as primary:
            assert await primary.wait(1, 60_000) == 1  # a tail that is not replicated would be lost
        async with queue.courier(queue.assignment(service.url, delivery={"concurrency": 4})):
            await until(lambda: len(delivered) >= MESSAGES // 4)
            await asyncio.to_thread(redis_sentinel.kill, redis_sentinel.primary)
            await until(lambda: len(delivered) == MESSAGES)
            letters = await queue.until_buried(sum(map(is_bad, range(MESSAGES))))
    counts = Counter(int(one.message.value or b"-1") for one in letters)
    assert counts == {number: 1 for number in range(MESSAGES) if is_bad(number)}


@contextmanager
def own_sentinel(directory: Path, primary: str, *settings: str, plain: bool = True) -> Iterator[str]:
    """Start a Sentinel that watches `host port`, and yield its address. Without `plain` it accepts TLS only."""
    (port,) = ports.free(HERE)
    listen = [f"port {port}"] if plain else ["port 0", f"tls-port {port}"]
    config = directory / "sentinel.conf"
    config.write_text("\n".join([f"bind {HERE}", *listen, f"sentinel monitor {PRIMARY} {primary} 1", *settings, ""]))
    command = [tools.path("redis-server"), str(config), "--sentinel"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory)
    try:
        processes.wait_until("Sentinel", lambda: ports.answers(HERE, port), 60)
        yield f"{HERE}:{port}"
    finally:
        child.kill()
        child.wait()


def connection(*nodes: str, scheme: str = "redis", name: str = PRIMARY, **settings: Any) -> BrokerConnectionSpec:
    secret = {"secretRef": {"name": "watch"}} if "secretRef" in settings else {}
    sentinel = {"masterName": name, "nodes": nodes, **secret}
    redis = {"url": f"{scheme}://primary.invalid/0", "mode": "Sentinel", "sentinel": sentinel, **settings}
    return BrokerConnectionSpec.model_validate({"redis": redis})


async def server_kind(spec: BrokerConnectionSpec, secrets: Any = no_secrets, allow: tuple[str, ...] = LOOPBACK) -> str:
    async with open_broker(spec, secrets, allow) as broker:
        return (await broker.server_info()).kind


async def test_sentinels_and_servers_take_tls_and_a_login_of_their_own(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.sign("server")
    files = {"cert": "server/tls.crt", "key": "server/tls.key", "ca-cert": "ca.crt"}
    tls = {f"tls-{kind}-file": str(tmp_path / "ca" / file) for kind, file in files.items()}
    tls |= {"tls-auth-clients": "no", "tls-replication": "yes"}
    for name, password in (("login", "data"), ("watch", "sentinel")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "username").write_text("operator")
        (tmp_path / name / "password").write_text(password)
    options = [part for key, value in tls.items() for part in (f"--{key}", value)]
    acl = tmp_path / "users.acl"
    acl.write_text("user operator on >data ~* &* +@all\nuser default off\n")
    sentinel_acl = ("user operator on >sentinel ~* &* +@all", "user default off")
    lines = [f"{key} {value}" for key, value in tls.items()]
    lines += [f"sentinel auth-user {PRIMARY} operator", f"sentinel auth-pass {PRIMARY} data", *sentinel_acl]
    with (
        own_redis(tmp_path / "data", *options, "--aclfile", str(acl), plain=False) as port,
        own_sentinel(tmp_path, f"{HERE} {port}", *lines, plain=False) as node,
    ):
        spec = connection(node, scheme="rediss", tls=CA, secretRef={"name": "login"})
        assert await server_kind(spec, mounted_secrets(tmp_path)) == "Redis"
        (tmp_path / "watch" / "password").write_text("wrong")
        with pytest.raises(AuthenticationFailed):
            await server_kind(spec, mounted_secrets(tmp_path))
        untrusted = connection(node, scheme="rediss", secretRef={"name": "login"})
        with pytest.raises(CertificateRefused):
            await server_kind(untrusted, mounted_secrets(tmp_path))


async def test_an_address_that_the_sentinels_name_is_checked(tmp_path: Path) -> None:
    with own_sentinel(tmp_path, "127.0.0.2 6379") as node, pytest.raises(AddressForbidden):
        await server_kind(connection(node), allow=("127.0.0.1/32",))


async def test_a_sentinel_is_asked_after_others_failed_and_its_primary_must_be_one(tmp_path: Path) -> None:
    unused, _ = ports.free(HERE, 2)
    with own_redis(tmp_path / "data") as port, own_sentinel(tmp_path, f"{HERE} {port}") as node:
        assert await server_kind(connection(f"{HERE}:{unused}", node)) == "Redis"
        with pytest.raises(BrokerUnreachable, match="masterName"):
            await server_kind(connection(f"{HERE}:{unused}", node, name="other"))
        with pytest.raises(BrokerUnreachable):
            await server_kind(connection(f"{HERE}:{unused}"))
        async with Redis(host=HERE, port=port) as admin:
            await admin.replicaof(HERE, unused)  # type: ignore[no-untyped-call]
        with pytest.raises(BoxRefused, match="replica"):
            await server_kind(connection(node))
