"""Servers that send exactly the bytes a test wants, and clients that send them a request."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.resolver import GuardedResolver
from deadletter.workers.delivery.http.url import Url

LOOPBACK = ("127.0.0.0/8", "::1/128")
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server that calls `talk` for each connection; yields its port."""
    running: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()
        running.discard(task)

    listening = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tuple(running):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(4)


def saying(*parts: bytes, forever: bool = False) -> Talk:
    """Respond to a request with these parts, then close; with `forever`, repeat the last part."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        while forever:
            writer.write(parts[-1])
            await writer.drain()

    return talk


async def ask(port: int, seconds: float = 60.0):
    client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
    try:
        return await client.exchange(HEAD, b"body", seconds)
    finally:
        await client.close()


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a port where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def server_tls(folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    if wants_client:
        made.load_verify_locations(folder / "ca.crt")
        made.verify_mode = ssl.CERT_REQUIRED
    return made


@contextmanager
def refusing_server(tls: ssl.SSLContext) -> Iterator[int]:
    """Run a server that sends a TLS alert about a client certificate; asyncio's own closes without one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_answer_all, args=(listening, tls), daemon=True)
        serving.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def _answer_all(listening: socket.socket, tls: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listening.accept()
        except OSError:  # shut down
            return
        plain.settimeout(10)
        with tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as secured:
            try:
                secured.do_handshake()
                secured.recv(1 << 16)
                secured.sendall(OK)
            except ssl.SSLError:
                while socket.socket.recv(secured, 1 << 16):  # else a reset overtakes the alert
                    pass


async def ask_tls(port: int, tls: ssl.SSLContext, host: str = "localhost"):
    async def here(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    client = HttpClient(Url.parse(f"https://{host}:{port}/"), GuardedResolver(LOOPBACK, here), tls)
    try:
        return await client.exchange(HEAD, b"body", 60)
    finally:
        await client.close()
