"""Pool of open brokers: one per BrokerConnection, opened at first use and opened again when its spec changes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from deadletter.api.broker_connections import BrokerConnection, BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.brokers.types import BoxState, ServerInfo
from deadletter.controller.state.secret_cache import SecretCache

T = TypeVar("T")
ConnectionKey = tuple[str, str]  # namespace and name of a BrokerConnection
DESCRIBE_BATCH_DELAY_S = 0.05
BROKER_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 10.0
log = structlog.stdlib.get_logger("broker_pool")


class ProbeInProgress(Exception):
    """Another pass is probing the broker; the object is reconciled again shortly. This is not an error."""


@dataclass(slots=True)
class PooledBroker:
    """One open broker with its monitor and the result of its last probe."""

    spec: BrokerConnectionSpec
    context_manager: AbstractAsyncContextManager[Broker]
    broker: Broker
    monitor: BoxMonitor
    server: ServerInfo | None = None
    last_error: BrokerError | None = None  # of the last probe
    pending_describes: dict[str, asyncio.Future[BoxState | None]] = field(default_factory=dict)
    describe_task: asyncio.Task[None] | None = None
    probe_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Describe boxes, in one request with those that other passes ask for at the same time."""
        loop = asyncio.get_running_loop()
        futures = [self.pending_describes.setdefault(name, loop.create_future()) for name in names]
        if self.describe_task is None or self.describe_task.done():
            self.describe_task = loop.create_task(self._describe_pending())
        found = await asyncio.gather(*(asyncio.shield(future) for future in futures))
        return {state.name: state for state in found if state is not None}

    async def _describe_pending(self) -> None:
        while self.pending_describes:
            await asyncio.sleep(DESCRIBE_BATCH_DELAY_S)
            pending, self.pending_describes = self.pending_describes, {}
            results: Mapping[str, BoxState | Exception]
            try:
                results = await self._describe_or_split(list(pending))
            except Exception as error:  # noqa: BLE001 - every caller that waits must get the error
                results = dict.fromkeys(pending, error)
            for name, future in pending.items():
                result = results.get(name)
                if isinstance(result, Exception):
                    future.set_exception(result)
                    future.exception()  # marks it as retrieved: the caller may have been cancelled
                else:
                    future.set_result(result)

    async def _describe_or_split(self, names: list[str]) -> dict[str, BoxState | Exception]:
        """Describe boxes; one unauthorised name fails the whole request, so halve it until the others are known."""
        try:
            return dict(await with_timeout(self.broker.describe(names)))
        except NotAuthorised as error:
            if len(names) == 1:
                return {names[0]: error}
            middle = len(names) // 2
            return await self._describe_or_split(names[:middle]) | await self._describe_or_split(names[middle:])


async def with_timeout(call: Awaitable[T]) -> T:
    """Await a call to a broker; raises BrokerUnreachable when it takes longer than a minute."""
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise BrokerUnreachable("the broker does not answer in time") from error


def broker_identities(spec: BrokerConnectionSpec, server: ServerInfo | None) -> frozenset[str]:
    """Return address and, if known, cluster id; connections that share one of them reach the same broker."""
    redis = (spec.redis.sentinel_address or spec.redis.url) if spec.redis else ""
    address = sorted(spec.kafka.bootstrap_servers) if spec.kafka else redis
    return frozenset({f"at:{address}", *([f"id:{server.id}"] if server else [])})


class BrokerPool:
    """The open brokers by the namespace and name of their BrokerConnection."""

    def __init__(self, secrets: SecretCache, allowed_addresses: Sequence[str]) -> None:
        self._secrets = secrets
        self._allowed_addresses = allowed_addresses
        self._brokers: dict[ConnectionKey, PooledBroker] = {}
        self._locks: dict[ConnectionKey, asyncio.Lock] = {}

    def list_open(self) -> list[tuple[ConnectionKey, PooledBroker]]:
        """Return every open broker."""
        return list(self._brokers.items())

    def get(self, namespace: str, name: str) -> PooledBroker | None:
        """Return the broker of a connection if it is open."""
        return self._brokers.get((namespace, name))

    async def get_or_open(self, connection: BrokerConnection) -> PooledBroker:
        """Return the broker of a connection, opened if necessary; opening does not connect yet."""
        key = (connection.namespace, connection.name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            old = self._brokers.get(key)
            if old is not None and old.spec == connection.spec:
                return old
            if old is not None:
                await self._close(key)
            opened = open_broker(connection.spec, self._secrets.reader(connection.namespace), self._allowed_addresses)
            broker = await opened.__aenter__()
            self._brokers[key] = PooledBroker(connection.spec, opened, broker, broker.monitor())
            return self._brokers[key]

    def identities_of(self, connection: BrokerConnection | None) -> frozenset[str]:
        """Return the identities of a connection's broker; the cluster id is among them after a successful probe."""
        if connection is None:
            return frozenset()
        pooled = self.get(connection.namespace, connection.name)
        is_current = pooled is not None and pooled.spec == connection.spec
        return broker_identities(connection.spec, pooled.server if pooled is not None and is_current else None)

    async def probe(self, connection: BrokerConnection) -> ServerInfo:
        """Ask the broker for its kind, version and cluster id."""
        pooled = await self.get_or_open(connection)
        try:
            pooled.server = await with_timeout(pooled.broker.server_info())
        except BrokerError as error:
            pooled.last_error = error
            raise
        pooled.last_error = None
        return pooled.server

    async def ensure_identified(self, connection: BrokerConnection) -> None:
        """Probe the broker if it was not probed yet; raises ProbeInProgress while another pass does it."""
        pooled = await self.get_or_open(connection)
        if pooled.server is not None or pooled.last_error is not None:
            return
        if pooled.probe_lock.locked():
            raise ProbeInProgress
        async with pooled.probe_lock:
            await self.probe(connection)

    async def close(self, namespace: str, name: str) -> None:
        """Close the broker of a deleted connection."""
        async with self._locks.setdefault((namespace, name), asyncio.Lock()):
            await self._close((namespace, name))
        self._locks.pop((namespace, name), None)

    async def close_all(self) -> None:
        """Close every broker at shutdown."""
        for key in list(self._brokers):
            await self._close(key)

    async def _close(self, key: ConnectionKey) -> None:
        pooled = self._brokers.pop(key, None)
        if pooled is None:
            return
        for step in (pooled.monitor.close, lambda: pooled.context_manager.__aexit__(None, None, None)):
            await _run_and_log_error(step)


async def _run_and_log_error(step: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await step()
    except (BrokerError, TimeoutError, OSError) as error:
        log.warning("closing a broker failed", error=type(error).__name__)
