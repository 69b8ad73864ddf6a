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
from deadletter.controller.state.secret_cache import SecretStore

Got = TypeVar("Got")
Key = tuple[str, str]
GATHER_SECONDS = 0.05
ASK_SECONDS = 60.0
log = structlog.stdlib.get_logger("brokers")


class Meeting(Exception):
    """A broker is being asked who it is: no error, look again in a moment."""


@dataclass(slots=True)
class Line:
    """One open broker, what it said of itself, and its registers."""

    spec: BrokerConnectionSpec
    opened: AbstractAsyncContextManager[Broker]
    broker: Broker
    registers: BoxMonitor
    server: ServerInfo | None = None
    trouble: BrokerError | None = None  # what the last probe said
    asked: dict[str, asyncio.Future[BoxState | None]] = field(default_factory=dict)
    gathering: asyncio.Task[None] | None = None
    meeting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Describe boxes together with all others that are asked for in the same moment."""
        loop = asyncio.get_running_loop()
        futures = [self.asked.setdefault(name, loop.create_future()) for name in names]
        if self.gathering is None or self.gathering.done():
            self.gathering = loop.create_task(self._gather())
        found = await asyncio.gather(*(asyncio.shield(future) for future in futures))
        return {state.name: state for state in found if state is not None}

    async def _gather(self) -> None:
        while self.asked:
            await asyncio.sleep(GATHER_SECONDS)
            asked, self.asked = self.asked, {}
            try:
                found = await self._describe(list(asked))
            except Exception as error:  # noqa: BLE001 - whatever it is, those who asked must hear of it
                found = dict.fromkeys(asked, error)
            for name, future in asked.items():
                answer = found.get(name)
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                    future.exception()  # somebody may have given up waiting
                else:
                    future.set_result(answer)

    async def _describe(self, names: list[str]) -> dict[str, BoxState | Exception]:
        """A name that we may not describe fails the whole request: halve it until the others have their answer."""
        try:
            return dict(await within(self.broker.describe(names)))
        except NotAuthorised as error:
            if len(names) == 1:
                return {names[0]: error}
            middle = len(names) // 2
            return await self._describe(names[:middle]) | await self._describe(names[middle:])


async def within(asking: Awaitable[Got]) -> Got:
    """An answer of a broker, or BrokerUnreachable when it takes too long."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await asking
    except TimeoutError as error:
        raise BrokerUnreachable("the broker does not answer in time") from error


def identities(spec: BrokerConnectionSpec, server: ServerInfo | None) -> frozenset[str]:
    """Two that have one of these in common are the same broker."""
    where = sorted(spec.kafka.bootstrap_servers) if spec.kafka else spec.redis.url if spec.redis else ""
    return frozenset({f"at:{where}", *([f"id:{server.id}"] if server else [])})


class Pool:
    """All open brokers."""

    def __init__(self, secrets: SecretStore, allow: Sequence[str]) -> None:
        self._secrets = secrets
        self._allow = allow
        self._lines: dict[Key, Line] = {}
        self._locks: dict[Key, asyncio.Lock] = {}

    def all(self) -> list[tuple[Key, Line]]:
        """Every open line."""
        return list(self._lines.items())

    def known(self, namespace: str, name: str) -> Line | None:
        """The line of a connection, if it is open."""
        return self._lines.get((namespace, name))

    async def line(self, connection: BrokerConnection) -> Line:
        """The open line of this connection; opening dials nothing yet."""
        key = (connection.namespace, connection.name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            old = self._lines.get(key)
            if old is not None and old.spec == connection.spec:
                return old
            if old is not None:
                await self._close(key)
            opened = open_broker(connection.spec, self._secrets.reader(connection.namespace), self._allow)
            broker = await opened.__aenter__()
            self._lines[key] = Line(connection.spec, opened, broker, broker.monitor())
            return self._lines[key]

    def identities(self, connection: BrokerConnection | None) -> frozenset[str]:
        """What tells one broker from another: where it is, and the cluster's id once that is known."""
        if connection is None:
            return frozenset()
        line = self.known(connection.namespace, connection.name)
        known = line is not None and line.spec == connection.spec
        return identities(connection.spec, line.server if line is not None and known else None)

    async def probe(self, connection: BrokerConnection) -> ServerInfo:
        """Ask the broker who it is."""
        line = await self.line(connection)
        try:
            line.server = await within(line.broker.server_info())
        except BrokerError as error:
            line.trouble = error
            raise
        line.trouble = None
        return line.server

    async def meet(self, connection: BrokerConnection) -> None:
        """Know who the broker is before anything is asked of it. Meeting: another pass asks, and may wait for long."""
        line = await self.line(connection)
        if line.server is not None or line.trouble is not None:
            return
        if line.meeting.locked():
            raise Meeting
        async with line.meeting:
            await self.probe(connection)

    async def close(self, namespace: str, name: str) -> None:
        """The connection is gone."""
        async with self._locks.setdefault((namespace, name), asyncio.Lock()):
            await self._close((namespace, name))
        self._locks.pop((namespace, name), None)

    async def close_all(self) -> None:
        """The operator ends."""
        for key in list(self._lines):
            await self._close(key)

    async def _close(self, key: Key) -> None:
        line = self._lines.pop(key, None)
        if line is None:
            return
        for step in (line.registers.close, lambda: line.opened.__aexit__(None, None, None)):
            await _quietly(step)


async def _quietly(step: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(10):
            await step()
    except (BrokerError, TimeoutError, OSError) as error:
        log.warning("a broker was not closed cleanly", error=type(error).__name__)
