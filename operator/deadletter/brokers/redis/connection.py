"""A RedisConnection and its Secrets -> an open broker."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from deadletter.api.broker_connections import RedisConnection
from deadletter.brokers.address_check import address_guard
from deadletter.brokers.errors import NotSupported
from deadletter.brokers.redis.broker import RedisBroker
from deadletter.brokers.redis.client import Line

Secrets = Callable[[str, str], bytes]
Guard = Callable[[Iterable[str]], Awaitable[None]]
_CONNECTIONS = 16


@asynccontextmanager
async def open_redis(spec: RedisConnection, secrets: Secrets, allow: Sequence[str] = ()) -> AsyncIterator[RedisBroker]:
    """Dials at the first request. Secrets are read at each new connection, so a rotated one is taken up."""
    if spec.mode != "Standalone":
        raise NotSupported(f"mode {spec.mode} of Redis is not supported yet; use Standalone")
    line = Line(Redis(connection_pool=_pool(spec, secrets, address_guard(allow))))
    try:
        yield RedisBroker(line, _address(spec))
    finally:
        await line.close()


def _address(spec: RedisConnection) -> str:
    url = urlsplit(spec.url)
    return f"{url.hostname}:{url.port or 6379}/{url.path.strip('/') or 0}"


def _pool(spec: RedisConnection, secrets: Secrets, guard: Guard) -> BlockingConnectionPool:
    url = urlsplit(spec.url)
    return BlockingConnectionPool(
        max_connections=_CONNECTIONS,
        timeout=20,
        connection_class=_Dialled,
        host=url.hostname or "",
        port=url.port or 6379,
        db=int(url.path.strip("/") or 0),
        protocol=2,
        socket_timeout=10,
        socket_connect_timeout=5,
        socket_keepalive=True,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),  # a lost reply to a write must not become a second write
        client_name="dlq-operator",
        credential_provider=_Login(spec, secrets) if spec.secret_ref else None,
        guard=guard,
        context=_context(spec, secrets),
    )


def _context(spec: RedisConnection, secrets: Secrets) -> Callable[[], ssl.SSLContext | None]:
    from deadletter.brokers.connect import tls_context

    def make() -> ssl.SSLContext | None:
        if not spec.url.startswith("rediss:"):
            return None
        return tls_context(spec.tls, secrets) if spec.tls else ssl.create_default_context()

    return make


class _Login(CredentialProvider):
    """User and password as the Secret holds them when a connection is made."""

    def __init__(self, spec: RedisConnection, secrets: Secrets) -> None:
        self._name, self._secrets = spec.secret_ref.name if spec.secret_ref else "", secrets

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        from deadletter.brokers.connect import secret

        password = secret(self._secrets, self._name, "password").decode().strip("\r\n")
        try:
            user = self._secrets(self._name, "username").decode().strip("\r\n")
        except KeyError:
            return (password,)
        return (user, password) if user else (password,)


class _Dialled(Connection):
    """A connection that asks the address guard first and makes its TLS context anew."""

    def __init__(self, guard: Guard, context: Callable[[], ssl.SSLContext | None], **settings: Any) -> None:
        super().__init__(**settings)
        self._guard, self._context = guard, context

    async def _connect(self) -> None:
        await self._guard([self.host])
        await super()._connect()  # type: ignore[no-untyped-call]

    def pack_command(self, *words: Any) -> list[bytes]:
        """By hiredis: the driver's own way takes as long as all the rest of a replay."""
        return [pack_command(words)]

    def _connection_arguments(self) -> Mapping[str, Any]:
        context = self._context()
        arguments = dict(super()._connection_arguments())
        return arguments | {"ssl": context} if context else arguments
