"""A proxy in front of the API server: it counts writes, may do something at the k-th, or refuse for a while."""

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from tests.bed import ports
from tests.bed.control import ApiServer

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
HOP = frozenset({"host", "transfer-encoding", "connection", "content-length", "content-encoding", "accept-encoding"})


class Proxy:
    """Runs in a thread of its own; `at` is called with the number of each write when it was answered."""

    def __init__(self, server: ApiServer, at: Callable[[int], None] = lambda _: None) -> None:
        self.port = ports.free("127.0.0.1")[0]
        self.writes = 0
        self.used: Counter[tuple[str, str]] = Counter()
        self.refuse = 0  # answer everything with this status
        self._server, self._at = server, at
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> "Proxy":
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def kubeconfig(self, given: Path) -> Path:
        """The same kubeconfig, by way of this proxy."""
        config = yaml.safe_load(given.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        path = given.with_suffix(f".{self.port}")
        path.write_text(yaml.safe_dump(config))
        return path

    async def _serve(self) -> None:
        trust = ssl.create_default_context(cafile=self._server.kubeconfig.parent / "ca.crt")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0)) as self._session:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            self._up.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            return web.json_response({"message": "not now"}, status=self.refuse, headers={"Retry-After": "1"})
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        url = f"{self._server.server}{request.path_qs}"
        call = self._session.request(
            request.method, url, headers=headers, data=await request.read() or None, timeout=None
        )
        async with call as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            if request.method in WRITES:
                self._count(request)
            with contextlib.suppress(aiohttp.ClientConnectionResetError):  # the operator is gone
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
        return response

    def _count(self, request: web.Request) -> None:
        self.writes += 1
        self._at(self.writes)
