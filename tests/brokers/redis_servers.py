"""Redis servers for a single test, and a proxy between client and server that can lose replies."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.bed import ports, processes, tools

HERE = "127.0.0.1"


def url_of(port: int) -> str:
    """Return the URL of a Redis on this machine."""
    return f"redis://{HERE}:{port}/0"


@contextmanager
def own_redis(directory: Path, *settings: str, plain: bool = True) -> Iterator[int]:
    """Start a Redis for one test and yield its port. Without `plain` it accepts TLS only."""
    tools.need("redis-server", "redis-cli")
    directory.mkdir(parents=True, exist_ok=True)
    child, port = _start(directory, settings, plain)
    try:
        yield port
    finally:
        child.kill()
        child.wait()


def _start(directory: Path, settings: tuple[str, ...], plain: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Redis; try another port if a different process has taken the free one."""
    for _ in range(10):
        (port,) = ports.free(HERE)
        listen = ["--port", str(port)] if plain else ["--port", "0", "--tls-port", str(port)]
        command = [
            tools.path("redis-server"),
            "--bind",
            HERE,
            *listen,
            "--dir",
            str(directory),
            "--save",
            "",
            *settings,
        ]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.wait_until("Redis", lambda c=child, p=port: c.poll() is not None or ports.answers(HERE, p), 60)
        if child.poll() is None:
            return child, port
    raise AssertionError("Redis does not start")


class DurableRedis:
    """A Redis that persists every command before it replies, and can be restarted at the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> "DurableRedis":
        settings = ("--appendonly", "yes", "--appendfsync", "always")
        self._child, self.port = _start(self._directory, settings, plain=True)
        self._command = self._child.args
        return self

    def restart(self, hard: bool) -> None:
        """Kill (`hard`) or terminate the server, and start it again."""
        (self._child.kill if hard else self._child.terminate)()
        self._child.wait()
        self._child = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.wait_until("Redis", lambda: ports.answers(HERE, self.port), 60)

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()


class CuttingProxy:
    """Forwards bytes both ways. `lose_reply_to` drops the reply to a request and cuts the connection."""

    def __init__(self) -> None:
        self._marked: list[bytes] = []
        self.lost_replies = 0
        self.silent = False
        self.port = 0

    def lose_reply_to(self, content: bytes) -> None:
        """Drop the reply to the next request that contains these bytes."""
        self._marked.append(content)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: str) -> None:
        host, _, port = server.rpartition(":")
        inner, outer = await asyncio.open_connection(host, int(port))
        is_cut = asyncio.Event()
        directions = {
            asyncio.ensure_future(self._forward(reader, outer, lambda piece: self._inspect(piece, is_cut))),
            asyncio.ensure_future(self._forward(inner, writer, lambda _: not is_cut.is_set())),
        }
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        outer.close()
        writer.close()

    def _inspect(self, piece: bytes, is_cut: asyncio.Event) -> bool:
        for content in self._marked:
            if content in piece:
                self._marked.remove(content)
                self.lost_replies += 1
                is_cut.set()
                break
        return True

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, may_pass: Callable[[bytes], bool]
    ) -> None:
        while piece := await source.read(1 << 16):
            if not may_pass(piece):
                return
            while self.silent:
                await asyncio.sleep(0.05)
            target.write(piece)
            await target.drain()


@asynccontextmanager
async def cutting_proxy(server: str) -> AsyncIterator[CuttingProxy]:
    """Start a proxy to the server at `host:port`."""
    proxy = CuttingProxy()
    listening = await asyncio.start_server(lambda r, w: proxy.serve(r, w, server), HERE, 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
