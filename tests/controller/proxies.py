"""A proxy in front of the API server: it notes what is asked for, and lies, refuses or falls silent when told to."""

import asyncio
import contextlib
import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml
from aiohttp import web

from tests.bed import ports
from tests.bed.control import ApiServer

WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
HOP = frozenset({"host", "transfer-encoding", "connection", "content-length", "content-encoding", "accept-encoding"})
PATH = re.compile(r"^/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$")


PLURALS = {"DeadLetterQueue": "deadletterqueues", "Replay": "replays"}


class Asked(NamedTuple):
    """One request as RBAC sees it."""

    verb: str
    group: str
    resource: str


def asked(request: web.Request, status: int = 200) -> list[Asked]:
    """What a request needs rights for; an apply that made something needed two."""
    found = PATH.match(request.path)
    if found is None:
        return []
    group, resource, name, part = found[1] or "", found[2], found[3], found[4]
    reads = "watch" if "watch" in request.query else "get" if name else "list"
    verbs = [WRITES.get(request.method, reads)]
    verbs += ["create"] if request.method == "PATCH" and status == web.HTTPCreated.status_code else []
    return [Asked(verb, group, f"{resource}/{part}" if part else resource) for verb in verbs]


def owned(content: bytes) -> list[Asked]:
    """What OwnerReferencesPermissionEnforcement asks of whoever writes a child that holds back its owner."""
    if b"blockOwnerDeletion" not in content:
        return []
    owners = json.loads(content)["metadata"]["ownerReferences"]
    return [Asked("update", one["apiVersion"].split("/")[0], f"{PLURALS[one['kind']]}/finalizers") for one in owners]


class Proxy:
    """Runs in a thread of its own; `at` is called with the number of each write when it was answered."""

    def __init__(self, server: ApiServer, at: Callable[[int], None] = lambda _: None) -> None:
        self.port = ports.free("127.0.0.1")[0]
        self.writes = 0
        self.used: Counter[Asked] = Counter()
        self.came: list[float] = []  # when writes were asked for
        self.refuse = 0  # answer everything with this status
        self.refused = 0
        self.retry_after = 1
        self.silent = False  # watches stay open and say nothing
        self.hides: Callable[[dict[str, Any]], bool] = lambda _: False  # events that no watch tells
        self.stale: set[str] = set()  # kinds of which lists say what they said before
        self.gone: set[str] = set()  # kinds whose watches end, and begin with 410
        self.answered_gone = 0
        self.listed: dict[str, dict[str, bytes]] = {}  # kind -> URL -> what the last true list said
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
            watches = asyncio.all_tasks() - {asyncio.current_task()}
            for one in watches:
                one.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if request.method in WRITES:
            self.came.append(time.monotonic())
        if self.refuse:
            self.refused += 1
            wait = {"Retry-After": str(self.retry_after)}
            if self.refuse == web.HTTPOk.status_code:
                return web.Response(text="<html>not now</html>", content_type="text/html")
            return web.json_response({"message": "not now"}, status=self.refuse, headers=wait)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        url = f"{self._server.server}{request.path_qs}"
        call = self._session.request(
            request.method, url, headers=headers, data=await request.read() or None, timeout=None
        )
        async with call as answer:
            needed = asked(request, answer.status) + owned(await request.read())
            self.used.update(needed)
            if needed and needed[0].verb == "watch":
                return await self._watch(request, answer, needed[0].resource)
            return await self._answer(request, answer, needed)

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse, needed: list[Asked]
    ) -> web.StreamResponse:
        status, content = answer.status, await answer.read()
        if request.method in WRITES:
            self.writes += 1
            self._at(self.writes)
        if needed and needed[0].verb == "list" and status == web.HTTPOk.status_code:
            said = self.listed.setdefault(needed[0].resource, {})
            if needed[0].resource in self.stale:
                content = said.get(request.path_qs, content)
            else:
                said[request.path_qs] = content
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
        return web.Response(status=status, body=content, headers=kept)

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse, resource: str) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        with contextlib.suppress(aiohttp.ClientConnectionResetError):  # the operator is gone
            await response.prepare(request)
            if resource in self.gone:
                self.answered_gone += 1
                await response.write(json.dumps(GONE).encode() + b"\n")
                return response
            await self._tell(answer, response, resource)
        return response

    async def _tell(self, answer: aiohttp.ClientResponse, response: web.StreamResponse, resource: str) -> None:
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if resource in self.gone:
                return
            for line in lines:
                if line.strip() and not self.silent and not self.hides(json.loads(line)):
                    await response.write(line + b"\n")


GONE = {
    "type": "ERROR",
    "object": {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"},
}
