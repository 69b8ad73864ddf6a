"""Open a Redis broker: connection pool, login, TLS and the check of dialled addresses."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from deadletter.api.broker_connections import RedisConnection
from deadletter.brokers.address_check import AddressCheck, address_check
from deadletter.brokers.credentials import read_text, tls_context
from deadletter.brokers.errors import NotSupported
from deadletter.brokers.redis.broker import RedisBroker
from deadletter.brokers.redis.client import RedisClient
from deadletter.net.secrets import Secrets

DEFAULT_PORT = 6379
MAX_CONNECTIONS = 16
POOL_TIMEOUT_S = 20
REPLY_TIMEOUT_S = 10
CONNECT_TIMEOUT_S = 5


@asynccontextmanager
async def open_redis(spec: RedisConnection, secrets: Secrets, allow: Sequence[str] = ()) -> AsyncIterator[RedisBroker]:
    """Open a broker. It connects at the first request and reads Secrets for each connection, to follow a rotation."""
    if spec.mode != "Standalone":
        raise NotSupported(f"mode {spec.mode} of Redis is not supported yet; use Standalone")
    client = RedisClient(Redis(connection_pool=_pool(spec, secrets, address_check(allow))))
    try:
        yield RedisBroker(client, _address(spec))
    finally:
        await client.close()


def _address(spec: RedisConnection) -> str:
    url = urlsplit(spec.url)
    return f"{url.hostname}:{url.port or DEFAULT_PORT}/{url.path.strip('/') or 0}"


def _pool(spec: RedisConnection, secrets: Secrets, check: AddressCheck) -> BlockingConnectionPool:
    url = urlsplit(spec.url)
    return BlockingConnectionPool(
        max_connections=MAX_CONNECTIONS,
        timeout=POOL_TIMEOUT_S,
        connection_class=_CheckedConnection,
        host=url.hostname or "",
        port=url.port or DEFAULT_PORT,
        db=int(url.path.strip("/") or 0),
        protocol=2,
        socket_timeout=REPLY_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),  # a lost reply to a write must not become a second write
        client_name="dlq-operator",
        credential_provider=_Credentials(spec, secrets) if spec.secret_ref else None,
        check=check,
        make_context=_context_factory(spec, secrets),
    )


def _context_factory(spec: RedisConnection, secrets: Secrets) -> Callable[[], ssl.SSLContext | None]:
    if not spec.url.startswith("rediss:"):
        return lambda: None
    return lambda: tls_context(spec.tls, secrets)


class _Credentials(CredentialProvider):
    """User and password as the Secret holds them when a connection is made."""

    def __init__(self, spec: RedisConnection, secrets: Secrets) -> None:
        self._name, self._secrets = spec.secret_ref.name if spec.secret_ref else "", secrets

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = read_text(self._secrets, self._name, "password")
        try:
            user = self._secrets(self._name, "username").decode().strip("\r\n")
        except KeyError:
            return (password,)
        return (user, password) if user else (password,)


class _CheckedConnection(Connection):
    """A connection that checks the address first and makes a new TLS context."""

    def __init__(self, check: AddressCheck, make_context: Callable[[], ssl.SSLContext | None], **settings: Any) -> None:
        super().__init__(**settings)
        self._check, self._make_context = check, make_context

    async def _connect(self) -> None:
        await self._check([self.host])
        await super()._connect()  # type: ignore[no-untyped-call]

    def pack_command(self, *words: Any) -> list[bytes]:
        """Pack a command with hiredis: the driver's own packing takes as long as all the rest of a replay."""
        return [pack_command(words)]

    def _connection_arguments(self) -> Mapping[str, Any]:
        context = self._make_context()
        arguments = dict(super()._connection_arguments())
        return arguments | {"ssl": context} if context else arguments
