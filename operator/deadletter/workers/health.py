"""Serve /healthz, /readyz and /metrics of a worker, on the worker's own event loop.

Because the server shares the loop, a worker whose loop is blocked does not answer: that is one half of the liveness
check. The other half is the worker's own watchdog, `liveness_problem`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

MAX_REQUEST_BYTES = 16 << 10
REQUEST_TIMEOUT_S = 10.0
TEXT_PLAIN = "text/plain; charset=utf-8"
ProbeResponse = tuple[int, str, bytes]
STATUS_TEXTS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def no_problem() -> str:
    """Return no problem."""
    return ""


@dataclass(slots=True)
class ProbeHandlers:
    """The checks behind the probes; each returns the problem, or an empty string."""

    liveness_problem: Callable[[], str] = no_problem
    readiness_problem: Callable[[], str] = no_problem
    registry: CollectorRegistry = REGISTRY

    def respond(self, path: str) -> ProbeResponse:
        """Return status, content type and body for a path."""
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        check = {"/healthz": self.liveness_problem, "/readyz": self.readiness_problem}.get(path)
        if check is None:
            return 404, TEXT_PLAIN, b"not found\n"
        problem = check()
        return (503, TEXT_PLAIN, problem.encode() + b"\n") if problem else (200, TEXT_PLAIN, b"ok\n")


def _respond(handlers: ProbeHandlers, head: bytes) -> ProbeResponse:
    method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
    if method not in (b"GET", b"HEAD"):
        return 405, TEXT_PLAIN, b"only GET\n"
    status, content_type, body = handlers.respond(path.split(b"?", 1)[0].decode("latin-1"))
    return status, content_type, body if method == b"GET" else b""


def _render(response: ProbeResponse) -> bytes:
    status, content_type, body = response
    head = (
        f"HTTP/1.1 {status} {STATUS_TEXTS[status]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"Connection: close\r\n\r\n" + body


@asynccontextmanager
async def serve_probes(handlers: ProbeHandlers, port: int, host: str = "") -> AsyncIterator[int]:
    """Serve while the block runs; yields the port, which is a free one if `port` is 0."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
            writer.write(_render(_respond(handlers, head)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, host or None, port, limit=MAX_REQUEST_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
