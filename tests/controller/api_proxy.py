"""A proxy in front of the API server that records requests and injects faults."""

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
HOP_BY_HOP_HEADERS = frozenset(
    {"host", "transfer-encoding", "connection", "content-length", "content-encoding", "accept-encoding"}
)
PATH = re.compile(r"^/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$")


PLURALS = {"DeadLetterQueue": "deadletterqueues", "Replay": "replays"}


class Access(NamedTuple):
    """What a request needs a right for, as RBAC sees it."""

    verb: str
    group: str
    resource: str


def required_access(request: web.Request, status: int = 200) -> list[Access]:
    """Return the rights that a request needs; an apply that created an object needed two."""
    found = PATH.match(request.path)
    if found is None:
        return []
    group, resource, name, part = found[1] or "", found[2], found[3], found[4]
    reads = "watch" if "watch" in request.query else "get" if name else "list"
    verbs = [WRITES.get(request.method, reads)]
    verbs += ["create"] if request.method == "PATCH" and status == web.HTTPCreated.status_code else []
    return [Access(verb, group, f"{resource}/{part}" if part else resource) for verb in verbs]


def required_finalizer_access(content: bytes) -> list[Access]:
    """Return the rights that OwnerReferencesPermissionEnforcement requires for blockOwnerDeletion."""
    if b"blockOwnerDeletion" not in content:
        return []
    owners = json.loads(content)["metadata"]["ownerReferences"]
    return [Access("update", one["apiVersion"].split("/")[0], f"{PLURALS[one['kind']]}/finalizers") for one in owners]


class ApiProxy:
    """Runs in a thread; `on_write` is called with the number of each write after its response."""

    def __init__(self, server: ApiServer, on_write: Callable[[int], None] = lambda _: None) -> None:
        self.port = ports.free("127.0.0.1")[0]
        self.writes = 0
        self.used_access: Counter[Access] = Counter()
        self.write_times: list[float] = []  # of requests, monotonic seconds
        self.error_status = 0  # answer every request with this status; 0: forward it
        self.refused_requests = 0
        self.retry_after = 1
        self.silences_watches = False  # watches stay open without events
        self.hides_event: Callable[[dict[str, Any]], bool] = lambda _: False  # events that are dropped from watches
        self.stale_lists: set[str] = set()  # resources whose lists are answered with the last recorded one
        self.expired_watches: set[str] = set()  # resources whose watches end, and start with 410
        self.expired_responses = 0
        self.last_lists: dict[str, dict[str, bytes]] = {}  # resource -> URL -> body of the last forwarded list
        self._server, self._on_write = server, on_write
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> "ApiProxy":
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def kubeconfig(self, given: Path) -> Path:
        """Return a copy of a kubeconfig that uses this proxy."""
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
            self.write_times.append(time.monotonic())
        if self.error_status:
            self.refused_requests += 1
            wait = {"Retry-After": str(self.retry_after)}
            if self.error_status == web.HTTPOk.status_code:
                return web.Response(text="<html>not now</html>", content_type="text/html")
            return web.json_response({"message": "not now"}, status=self.error_status, headers=wait)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
        url = f"{self._server.server}{request.path_qs}"
        call = self._session.request(
            request.method, url, headers=headers, data=await request.read() or None, timeout=None
        )
        async with call as answer:
            needed = required_access(request, answer.status) + required_finalizer_access(await request.read())
            self.used_access.update(needed)
            if needed and needed[0].verb == "watch":
                return await self._watch(request, answer, needed[0].resource)
            return await self._respond(request, answer, needed)

    async def _respond(
        self, request: web.Request, answer: aiohttp.ClientResponse, needed: list[Access]
    ) -> web.StreamResponse:
        status, content = answer.status, await answer.read()
        if request.method in WRITES:
            self.writes += 1
            self._on_write(self.writes)
        if needed and needed[0].verb == "list" and status == web.HTTPOk.status_code:
            recorded = self.last_lists.setdefault(needed[0].resource, {})
            if needed[0].resource in self.stale_lists:
                content = recorded.get(request.path_qs, content)
            else:
                recorded[request.path_qs] = content
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
        return web.Response(status=status, body=content, headers=kept)

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse, resource: str) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        with contextlib.suppress(aiohttp.ClientConnectionResetError):  # the operator is gone
            await response.prepare(request)
            if resource in self.expired_watches:
                self.expired_responses += 1
                await response.write(json.dumps(EXPIRED_EVENT).encode() + b"\n")
                return response
            await self._relay_events(answer, response, resource)
        return response

    async def _relay_events(self, answer: aiohttp.ClientResponse, response: web.StreamResponse, resource: str) -> None:
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if resource in self.expired_watches:
                return
            for line in lines:
                if line.strip() and not self.silences_watches and not self.hides_event(json.loads(line)):
                    await response.write(line + b"\n")


EXPIRED_EVENT = {
    "type": "ERROR",
    "object": {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"},
}
