"""A service that couriers deliver to: a real HTTP server on loopback whose responses the test decides."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Received:
    """One request as the service received it."""

    headers: dict[str, str]
    body: bytes
    path: str = "/"
    transport: asyncio.BaseTransport | None = None

    def hang_up(self) -> None:
        """Reset the connection instead of responding."""
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.abort()

    @property
    def id(self) -> str:
        return self.headers["Idempotency-Key"]


Answering = Callable[[Received], web.Response | Awaitable[web.Response]]


def ok(_: Received) -> web.Response:
    return web.Response(status=200)


def status(code: int, **headers: str) -> Answering:
    """Return a function that always responds with this status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, headers=named, text="no")


@dataclass
class Service:
    """The requests in order of arrival; `answer` may be changed at any time."""

    answer: Answering = ok
    received: list[Received] = field(default_factory=list)
    port: int = 0
    runner: web.AppRunner | None = None
    site: web.TCPSite | None = None

    async def listen(self) -> None:
        """Accept connections, at the previous port if there was one."""
        assert self.runner is not None
        self.site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await self.site.start()
        self.port = self.port or self.runner.addresses[0][1]

    async def refuse(self) -> None:
        """Refuse new connections; open ones stay open."""
        assert self.site is not None
        await self.site.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in self.received]

    async def handle(self, request: web.Request) -> web.Response:
        one = Received(dict(request.headers), await request.read(), request.path_qs, request.transport)
        self.received.append(one)
        answer = self.answer(one)
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[return-value]


@asynccontextmanager
async def serving(answer: Answering = ok) -> AsyncIterator[Service]:
    service = Service(answer)
    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{rest:.*}", service.handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    service.runner = runner
    await service.listen()
    try:
        yield service
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until the condition is true, long enough for a slow machine."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
