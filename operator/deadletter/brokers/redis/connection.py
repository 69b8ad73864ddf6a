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
from redis.exceptions import ReadOnlyError

from deadletter.api.base import SecretRef
from deadletter.api.broker_connections import RedisConnection, Sentinel
from deadletter.brokers.address_check import AddressCheck, address_check
from deadletter.brokers.credentials import read_text, tls_context
from deadletter.brokers.errors import NotSupported
from deadletter.brokers.redis.broker import RedisBroker
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.sentinel import PrimaryLocator
from deadletter.net.secrets import Secrets

DEFAULT_PORT = 6379
MAX_CONNECTIONS = 16
POOL_TIMEOUT_S = 20
REPLY_TIMEOUT_S = 10
CONNECT_TIMEOUT_S = 5


@asynccontextmanager
async def open_redis(spec: RedisConnection, secrets: Secrets, allow: Sequence[str] = ()) -> AsyncIterator[RedisBroker]:
    """Open a broker. It connects at the first request and reads Secrets for each connection, to follow a rotation."""
    if spec.mode == "Cluster":
        raise NotSupported("mode Cluster of Redis is not supported yet; use Standalone or Sentinel")
    client = RedisClient(Redis(connection_pool=_pool(spec, secrets, address_check(allow))))
    try:
        yield RedisBroker(client, _address(spec))
    finally:
        await client.close()


def _address(spec: RedisConnection) -> str:
    url = urlsplit(spec.url)
    return spec.sentinel_address or f"{url.hostname}:{url.port or DEFAULT_PORT}/{spec.database}"


def _pool(spec: RedisConnection, secrets: Secrets, check: AddressCheck) -> BlockingConnectionPool:
    url = urlsplit(spec.url)
    shared = _connection_settings(spec, secrets, check)
    return BlockingConnectionPool(
        max_connections=MAX_CONNECTIONS,
        timeout=POOL_TIMEOUT_S,
        connection_class=_CheckedConnection,
        host=url.hostname or "",
        port=url.port or DEFAULT_PORT,
        db=spec.database,
        credential_provider=_credentials(spec.secret_ref, secrets),
        locator=_locator(spec.sentinel, secrets, shared) if spec.sentinel else None,
        **shared,
    )


def _connection_settings(spec: RedisConnection, secrets: Secrets, check: AddressCheck) -> dict[str, Any]:
    """Return what connections to Sentinels and to servers have in common."""
    return {
        "protocol": 2,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),  # a lost reply to a write must not become a second write
        "client_name": "dlq-operator",
        "check": check,
        "make_context": _context_factory(spec, secrets),
    }


def _locator(sentinel: Sentinel, secrets: Secrets, shared: dict[str, Any]) -> PrimaryLocator:
    credentials = _credentials(sentinel.secret_ref, secrets)

    def make_connection(host: str, port: int) -> Connection:
        return _CheckedConnection(host=host, port=port, credential_provider=credentials, **shared)

    return PrimaryLocator(sentinel, make_connection)


def _context_factory(spec: RedisConnection, secrets: Secrets) -> Callable[[], ssl.SSLContext | None]:
    if not spec.url.startswith("rediss:"):
        return lambda: None
    return lambda: tls_context(spec.tls, secrets)


def _credentials(secret: SecretRef | None, secrets: Secrets) -> "_Credentials | None":
    return _Credentials(secret.name, secrets) if secret else None


class _Credentials(CredentialProvider):
    """User and password as the Secret holds them when a connection is made."""

    def __init__(self, name: str, secrets: Secrets) -> None:
        self._name, self._secrets = name, secrets

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = read_text(self._secrets, self._name, "password")
        try:
            user = self._secrets(self._name, "username").decode().strip("\r\n")
        except KeyError:
            return (password,)
        return (user, password) if user else (password,)


class _CheckedConnection(Connection):
    """A connection that checks the address first and makes a new TLS context.

    With a locator it connects to the present primary, and refuses a server that is none: Sentinels may name the old one
    until a failover has ended.
    """

    def __init__(
        self,
        check: AddressCheck,
        make_context: Callable[[], ssl.SSLContext | None],
        locator: PrimaryLocator | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._check, self._make_context, self._locator = check, make_context, locator

    async def _connect(self) -> None:
        if self._locator is not None:
            self.host, self.port = await self._locator.locate()
        await self._check([self.host])
        await super()._connect()  # type: ignore[no-untyped-call]

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in, then check the role of a server that the Sentinels named."""
        await super().on_connect_check_health(check_health)
        if self._locator is not None:
            await self.send_command("INFO", "replication")
            if b"role:master" not in await self.read_response():
                raise ReadOnlyError("the server is a replica")

    def pack_command(self, *words: Any) -> list[bytes]:
        """Pack a command with hiredis: the driver's own packing takes as long as all the rest of a replay."""
        return [pack_command(words)]

    def _connection_arguments(self) -> Mapping[str, Any]:
        context = self._make_context()
        arguments = dict(super()._connection_arguments())
        return arguments | {"ssl": context} if context else arguments
