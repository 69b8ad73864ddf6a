"""/healthz, /readyz and /metrics of a worker: a server of a few lines that shares the worker's event loop.

Because it shares the loop, a worker whose loop is stuck does not answer: that is the first half of being live. The
second half is `is_live`, a watchdog of the worker's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

REQUEST_LIMIT = 16 << 10
REQUEST_SECONDS = 10.0
PLAIN = "text/plain; charset=utf-8"
Answer = tuple[int, str, bytes]
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def nothing_is_wrong() -> str:
    """Always well."""
    return ""


@dataclass(slots=True)
class ProbeHandlers:
    """Two questions, each answered with what is wrong, or nothing."""

    not_live: Callable[[], str] = nothing_is_wrong
    not_ready: Callable[[], str] = nothing_is_wrong
    registry: CollectorRegistry = REGISTRY

    def answer(self, path: str) -> Answer:
        """Status, content type and body for a path."""
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        asked = {"/healthz": self.not_live, "/readyz": self.not_ready}.get(path)
        if asked is None:
            return 404, PLAIN, b"not found\n"
        wrong = asked()
        return (503, PLAIN, wrong.encode() + b"\n") if wrong else (200, PLAIN, b"ok\n")


def _answer(health: ProbeHandlers, head: bytes) -> Answer:
    method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
    if method not in (b"GET", b"HEAD"):
        return 405, PLAIN, b"only GET\n"
    status, content, body = health.answer(path.split(b"?", 1)[0].decode("latin-1"))
    return status, content, body if method == b"GET" else b""


def _render(answer: Answer) -> bytes:
    status, content, body = answer
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {content}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


@asynccontextmanager
async def serve_probes(health: ProbeHandlers, port: int, host: str = "") -> AsyncIterator[int]:
    """Answer while the block runs; gives the port (asked with 0, a free one)."""

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            writer.write(_render(_answer(health, head)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(visit, host or None, port, limit=REQUEST_LIMIT)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
