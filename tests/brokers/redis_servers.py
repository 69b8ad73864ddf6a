"""Redis servers of a test's own, and a wire between client and server that can be cut."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.bed import ports, processes, tools

HERE = "127.0.0.1"


def url_of(port: int) -> str:
    """A Redis on this machine."""
    return f"redis://{HERE}:{port}/0"


@contextmanager
def own_redis(directory: Path, *settings: str, plain: bool = True) -> Iterator[int]:
    """A Redis that only this test uses; its port. Without `plain` it speaks TLS alone."""
    tools.need("redis-server", "redis-cli")
    directory.mkdir(parents=True, exist_ok=True)
    child, port = _started(directory, settings, plain)
    try:
        yield port
    finally:
        child.kill()
        child.wait()


def _started(directory: Path, settings: tuple[str, ...], plain: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Somebody else may take the port before it is used: then another one."""
    for _ in range(10):
        (port,) = ports.free(HERE)
        listen = ["--port", str(port)] if plain else ["--port", "0", "--tls-port", str(port)]
        words = [tools.path("redis-server"), "--bind", HERE, *listen, "--dir", str(directory), "--save", "", *settings]
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.wait_until("Redis", lambda c=child, p=port: c.poll() is not None or ports.answers(HERE, p), 60)
        if child.poll() is None:
            return child, port
    raise AssertionError("Redis does not start")


class DurableRedis:
    """A Redis that writes down every command before it answers, and comes back with all of it at the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> "DurableRedis":
        settings = ("--appendonly", "yes", "--appendfsync", "always")
        self._child, self.port = _started(self._directory, settings, plain=True)
        self._words = self._child.args
        return self

    def restart(self, hard: bool) -> None:
        """End it and start it again."""
        (self._child.kill if hard else self._child.terminate)()
        self._child.wait()
        self._child = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.wait_until("Redis", lambda: ports.answers(HERE, self.port), 60)

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()


class CuttingProxy:
    """Carries bytes both ways. `lose(word)`: when a request holds it, the reply is swallowed and the wire cut."""

    def __init__(self) -> None:
        self._words: list[bytes] = []
        self.lost_replies = 0
        self.silent = False
        self.port = 0

    def lose_reply_to(self, word: bytes) -> None:
        self._words.append(word)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: str) -> None:
        host, _, port = server.rpartition(":")
        inner, outer = await asyncio.open_connection(host, int(port))
        doomed = asyncio.Event()
        ways = {
            asyncio.ensure_future(self._carry(reader, outer, lambda piece: self._look(piece, doomed))),
            asyncio.ensure_future(self._carry(inner, writer, lambda _: not doomed.is_set())),
        }
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        outer.close()
        writer.close()

    def _look(self, piece: bytes, doomed: asyncio.Event) -> bool:
        for word in self._words:
            if word in piece:
                self._words.remove(word)
                self.lost_replies += 1
                doomed.set()
                break
        return True

    async def _carry(
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
    """A wire to the server at `host:port`."""
    wire = CuttingProxy()
    listening = await asyncio.start_server(lambda r, w: wire.serve(r, w, server), HERE, 0)
    wire.port = listening.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        listening.close()
