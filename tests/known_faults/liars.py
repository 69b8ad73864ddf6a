"""Brokers and resolvers that change their responses after the first one."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

PUBLIC = "203.0.113.9"  # reserved for documentation: no server has it
API_VERSIONS, METADATA = 18, 3
SUPPORTED_REQUESTS = (  # api key, highest version
    (18, 0),
    (3, 5),
    (19, 1),
    (20, 1),
    (32, 1),
    (33, 0),
    (37, 0),
    (0, 3),
    (1, 4),
    (2, 1),
    (10, 0),
    (36, 0),
    (17, 0),
    (22, 0),
)


class Listener:
    """A server that counts connections and closes them."""

    def __init__(self) -> None:
        self.visits = 0
        self.port = 0

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.close()


@asynccontextmanager
async def listening(address: str) -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.visit, address, 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()


def rebind(host: str, to: str) -> None:
    """Resolve `host` to a public address at first, and to another address from then on."""
    loop = asyncio.get_running_loop()
    real, calls = loop.getaddrinfo, 0

    async def resolve(name: Any, port: Any, **options: Any) -> Any:
        nonlocal calls
        if name != host:
            return await real(name, port, **options)
        calls += 1
        address = PUBLIC if calls == 1 else to
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))]

    loop.getaddrinfo = resolve  # type: ignore[method-assign]


class LyingKafka:
    """A Kafka broker that names itself in its first metadata, and the broker at `then` in all later ones."""

    def __init__(self, then: tuple[str, int]) -> None:
        self._then = then
        self._responses = 0
        self.port = 0

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                kind, _, number = struct.unpack(">hhi", (await reader.readexactly(length))[:8])
                if kind not in (API_VERSIONS, METADATA):
                    break
                response = self._versions(number) if kind == API_VERSIONS else self._metadata(number)
                writer.write(struct.pack(">i", len(response)) + response)
                await writer.drain()
        writer.close()

    def _versions(self, number: int) -> bytes:
        versions = b"".join(struct.pack(">hhh", kind, 0, highest) for kind, highest in SUPPORTED_REQUESTS)
        return struct.pack(">ihi", number, 0, len(SUPPORTED_REQUESTS)) + versions

    def _metadata(self, number: int) -> bytes:
        self._responses += 1
        is_first = self._responses == 1
        host, port = ("127.0.0.1", self.port) if is_first else self._then
        broker = struct.pack(">i", 1 if is_first else 2) + _text(host) + struct.pack(">ih", port, -1)
        return struct.pack(">iii", number, 0, 1) + broker + _text("lying-cluster") + struct.pack(">ii", 1, 0)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@asynccontextmanager
async def lying_kafka(then: tuple[str, int]) -> AsyncIterator[LyingKafka]:
    made = LyingKafka(then)
    server = await asyncio.start_server(made.visit, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
