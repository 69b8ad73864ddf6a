"""Open connections to brokers: one per BrokerConnection, opened at first use, opened anew when its spec changed."""

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
ConnectionKey = tuple[str, str]
DESCRIBE_BATCH_DELAY_S = 0.05
BROKER_TIMEOUT_S = 60.0
log = structlog.stdlib.get_logger("brokers")


class ProbeInProgress(Exception):
    """A broker is being asked who it is: no error, look again in a moment."""


@dataclass(slots=True)
class PooledBroker:
    """One open broker, what it said of itself, and its monitor."""

    spec: BrokerConnectionSpec
    context_manager: AbstractAsyncContextManager[Broker]
    broker: Broker
    monitor: BoxMonitor
    server: ServerInfo | None = None
    last_error: BrokerError | None = None  # what the last probe said
    pending_describes: dict[str, asyncio.Future[BoxState | None]] = field(default_factory=dict)
    describe_task: asyncio.Task[None] | None = None
    probe_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Describe boxes together with all others that are asked for in the same moment."""
        loop = asyncio.get_running_loop()
        futures = [self.pending_describes.setdefault(name, loop.create_future()) for name in names]
        if self.describe_task is None or self.describe_task.done():
            self.describe_task = loop.create_task(self._describe_pending())
        found = await asyncio.gather(*(asyncio.shield(future) for future in futures))
        return {state.name: state for state in found if state is not None}

    async def _describe_pending(self) -> None:
        while self.pending_describes:
            await asyncio.sleep(DESCRIBE_BATCH_DELAY_S)
            asked, self.pending_describes = self.pending_describes, {}
            try:
                found = await self._describe_or_split(list(asked))
            except Exception as error:  # noqa: BLE001 - whatever it is, those who asked must hear of it
                found = dict.fromkeys(asked, error)
            for name, future in asked.items():
                answer = found.get(name)
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                    future.exception()  # somebody may have given up waiting
                else:
                    future.set_result(answer)

    async def _describe_or_split(self, names: list[str]) -> dict[str, BoxState | Exception]:
        """A name that we may not describe fails the whole request: halve it until the others have their answer."""
        try:
            return dict(await with_timeout(self.broker.describe(names)))
        except NotAuthorised as error:
            if len(names) == 1:
                return {names[0]: error}
            middle = len(names) // 2
            return await self._describe_or_split(names[:middle]) | await self._describe_or_split(names[middle:])


async def with_timeout(asking: Awaitable[T]) -> T:
    """An answer of a broker, or BrokerUnreachable when it takes too long."""
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            return await asking
    except TimeoutError as error:
        raise BrokerUnreachable("the broker does not answer in time") from error


def broker_identities(spec: BrokerConnectionSpec, server: ServerInfo | None) -> frozenset[str]:
    """Two that have one of these in common are the same broker."""
    where = sorted(spec.kafka.bootstrap_servers) if spec.kafka else spec.redis.url if spec.redis else ""
    return frozenset({f"at:{where}", *([f"id:{server.id}"] if server else [])})


class BrokerPool:
    """All open brokers."""

    def __init__(self, secrets: SecretCache, allow: Sequence[str]) -> None:
        self._secrets = secrets
        self._allow = allow
        self._brokers: dict[ConnectionKey, PooledBroker] = {}
        self._locks: dict[ConnectionKey, asyncio.Lock] = {}

    def items(self) -> list[tuple[ConnectionKey, PooledBroker]]:
        """Every open pooled."""
        return list(self._brokers.items())

    def get(self, namespace: str, name: str) -> PooledBroker | None:
        """The line of a connection, if it is open."""
        return self._brokers.get((namespace, name))

    async def get_or_open(self, connection: BrokerConnection) -> PooledBroker:
        """The open line of this connection; opening dials nothing yet."""
        key = (connection.namespace, connection.name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            old = self._brokers.get(key)
            if old is not None and old.spec == connection.spec:
                return old
            if old is not None:
                await self._close(key)
            opened = open_broker(connection.spec, self._secrets.reader(connection.namespace), self._allow)
            broker = await opened.__aenter__()
            self._brokers[key] = PooledBroker(connection.spec, opened, broker, broker.monitor())
            return self._brokers[key]

    def identities_of(self, connection: BrokerConnection | None) -> frozenset[str]:
        """What tells one broker from another: where it is, and the cluster's id once that is known."""
        if connection is None:
            return frozenset()
        pooled = self.get(connection.namespace, connection.name)
        known = pooled is not None and pooled.spec == connection.spec
        return broker_identities(connection.spec, pooled.server if pooled is not None and known else None)

    async def probe(self, connection: BrokerConnection) -> ServerInfo:
        """Ask the broker who it is."""
        pooled = await self.get_or_open(connection)
        try:
            pooled.server = await with_timeout(pooled.broker.server_info())
        except BrokerError as error:
            pooled.last_error = error
            raise
        pooled.last_error = None
        return pooled.server

    async def ensure_identified(self, connection: BrokerConnection) -> None:
        """Know who the broker is before anything is asked of it. Meeting: another pass asks, and may wait for long."""
        pooled = await self.get_or_open(connection)
        if pooled.server is not None or pooled.last_error is not None:
            return
        if pooled.probe_lock.locked():
            raise ProbeInProgress
        async with pooled.probe_lock:
            await self.probe(connection)

    async def close(self, namespace: str, name: str) -> None:
        """The connection is gone."""
        async with self._locks.setdefault((namespace, name), asyncio.Lock()):
            await self._close((namespace, name))
        self._locks.pop((namespace, name), None)

    async def close_all(self) -> None:
        """The operator ends."""
        for key in list(self._brokers):
            await self._close(key)

    async def _close(self, key: ConnectionKey) -> None:
        pooled = self._brokers.pop(key, None)
        if pooled is None:
            return
        for step in (pooled.monitor.close, lambda: pooled.context_manager.__aexit__(None, None, None)):
            await _close_and_log(step)


async def _close_and_log(step: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(10):
            await step()
    except (BrokerError, TimeoutError, OSError) as error:
        log.warning("a broker was not closed cleanly", error=type(error).__name__)
