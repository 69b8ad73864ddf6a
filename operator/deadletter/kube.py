"""The only door to the Kubernetes API: get, list, watch, apply, delete, patch.

Plain JSON goes in and comes out: no model of the client's is ever built, so an unknown field is no fault and a thousand
objects cost what their JSON costs. Every request passes one rate limit, and one pause when the server asks for it.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import msgspec
from kubernetes.aio import client, config

Body = dict[str, Any]
FIELD_MANAGER = "dlq-operator"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT_S = 30
WATCH_TIMEOUT_S = 240
WATCH_READ_TIMEOUT_S = 70  # without bookmarks in this time the watch counts as dead
PAGE_SIZE = 500
GONE = 410
# A proxy's page in place of an answer is no answer either.
CONNECTION_ERRORS = (aiohttp.ClientError, OSError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError, msgspec.DecodeError)


class Resource(NamedTuple):
    """A kind of object and where the API server keeps it."""

    api_version: str
    plural: str
    kind: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Its URL path."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        steps = [root + self.api_version]
        steps += ["namespaces", namespace] if namespace else []
        return "/".join([*steps, self.plural, *(step for step in (name, subresource) if step)])


OUR_API_VERSION = "deadletter.dev/v1alpha1"
CONNECTIONS = Resource(OUR_API_VERSION, "brokerconnections", "BrokerConnection")
POLICIES = Resource(OUR_API_VERSION, "retrypolicies", "RetryPolicy")
QUEUES = Resource(OUR_API_VERSION, "deadletterqueues", "DeadLetterQueue")
REPLAYS = Resource(OUR_API_VERSION, "replays", "Replay")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource("apps/v1", "deployments", "Deployment")
JOBS = Resource("batch/v1", "jobs", "Job")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
POD_MONITORS = Resource("monitoring.coreos.com/v1", "podmonitors", "PodMonitor")
PODS = Resource("v1", "pods", "Pod")
SERVICES = Resource("v1", "services", "Service")
SECRETS = Resource("v1", "secrets", "Secret")
NAMESPACES = Resource("v1", "namespaces", "Namespace")
EVENTS = Resource("v1", "events", "Event")
CHILDREN = (CONFIG_MAPS, SERVICE_ACCOUNTS, DEPLOYMENTS, JOBS, NETWORK_POLICIES, POD_MONITORS)
RESOURCES = {one.kind: one for one in (CONNECTIONS, POLICIES, QUEUES, REPLAYS, *CHILDREN)}


class ApiError(Exception):
    """The API server said no, or nothing (status 0). The text never holds what was sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}" if status else message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class RequestThrottle:
    """A token bucket that can also be told to wait."""

    rate: float
    burst: float
    tokens: float = 0.0
    updated_at: float = 0.0
    paused_until: float = 0.0

    async def take(self) -> None:
        """Wait for one token."""
        while True:
            wait = self._wait(time.monotonic())
            if wait <= 0:
                return
            await asyncio.sleep(wait)

    def _wait(self, now: float) -> float:
        self.tokens = min(self.burst, self.tokens + (now - self.updated_at) * self.rate) if self.updated_at else self.burst
        self.updated_at = now
        if now < self.paused_until:
            return self.paused_until - now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0

    def pause(self, seconds: float) -> None:
        """Let nothing through for so long."""
        self.paused_until = max(self.paused_until, time.monotonic() + seconds)


def _error_of_response(status: int, content: bytes) -> ApiError:
    try:
        message = str(msgspec.json.decode(content).get("message", ""))
    except (msgspec.DecodeError, AttributeError):
        message = ""
    return ApiError(status, message[:1024] or "no reason given")


def _no_response(error: BaseException) -> ApiError:
    return ApiError(0, f"the API server does not answer ({type(error).__name__})")


class KubeClient:
    """One connection to the API server."""

    def __init__(self, api: Any, throttle: RequestThrottle, count: Callable[[str, str, int], None] | None = None) -> None:
        self._api = api
        self._throttle = throttle
        self._count = count or (lambda *_: None)

    async def get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        """The object as it is now; None: it does not exist."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> tuple[list[Body], str]:
        """All objects and the version of the list."""
        items: list[Body] = []
        query = {"limit": str(PAGE_SIZE), "labelSelector": selector}
        while True:
            page = await self._request("GET", resource.path(namespace), query)
            items += page.get("items", [])
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return items, page["metadata"].get("resourceVersion", "")

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selector: str = ""
    ) -> AsyncIterator[tuple[str, Body]]:
        """What changes after `version`, until the server ends it; ApiError 410: list again."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
            "labelSelector": selector,
        }
        patience = aiohttp.ClientTimeout(total=WATCH_TIMEOUT_S + 30, sock_read=WATCH_READ_TIMEOUT_S, sock_connect=10)
        response = await self._send("GET", resource.path(namespace), query, timeout=patience)
        try:
            async for line in _lines(response.response):
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                yield event["type"], event["object"]
        except CONNECTION_ERRORS as error:
            raise _no_response(error) from error
        finally:
            response.response.close()

    async def apply(self, manifest: Body) -> Body:
        """Server-side apply of the full intent."""
        resource, meta = RESOURCES[manifest["kind"]], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", resource.path(meta["namespace"], meta["name"]), query, manifest, APPLY_PATCH)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Body, subresource: str | None = None) -> Body:
        """Merge patch of an object or one of its parts (`status`)."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", resource.path(namespace, name, subresource), query, body, MERGE_PATCH)

    async def create(self, resource: Resource, namespace: str, body: Body) -> None:
        """A new object."""
        await self._request("POST", resource.path(namespace), {"fieldManager": FIELD_MANAGER}, body)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "") -> None:
        """Delete it, with `uid` only that one; gone already is fine."""
        body: Body = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        try:
            await self._request("DELETE", resource.path(namespace, name), {}, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self, verb: str, path: str, query: Mapping[str, str] | None = None, body: Body | None = None, content_type: str = ""
    ) -> Body:
        response = await self._send(verb, path, query or {}, body, content_type)
        try:
            answer: Body = msgspec.json.decode(await response.read())
        except CONNECTION_ERRORS as error:
            raise _no_response(error) from error
        return answer

    async def _send(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str],
        body: Body | None = None,
        content_type: str = "",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        await self._throttle.take()
        try:
            pairs = [(key, value) for key, value in query.items() if value]
            headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
            request = await self._api.param_serialize(
                verb, path, query_params=pairs, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            limit = timeout or aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=10)
            response = await self._api.call_api(*request, _request_timeout=limit)
            self._count(verb.lower(), path, response.status)
            if response.status < 300:
                return response
            content = await response.read()
        except CONNECTION_ERRORS as error:
            self._count(verb.lower(), path, 0)
            raise _no_response(error) from error
        if response.status == 429:
            self._throttle.pause(_seconds(response.headers.get("Retry-After")))
        raise _error_of_response(response.status, content)


def _seconds(header: str | None) -> float:
    with suppress(ValueError, TypeError):
        return min(60.0, max(1.0, float(header or 1)))
    return 1.0


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # aiohttp's own readline refuses lines over 64 KiB, and objects are longer.
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


async def _load_configuration() -> Any:
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            # Named here, because the library reads the variable only once, when it is imported.
            where = os.environ.get("KUBECONFIG")
            await config.load_kube_config(where, client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            raise ApiError(0, "no API server is known: this is no pod, and KUBECONFIG names none") from None
    settings.retries = None
    settings.connection_pool_maxsize = 64
    return settings


@asynccontextmanager
async def connect(
    rate: float, burst: int, count: Callable[[str, str, int], None] | None = None
) -> AsyncIterator[KubeClient]:
    """The API server of this pod, or of KUBECONFIG."""
    async with client.ApiClient(await _load_configuration()) as api:
        yield KubeClient(api, RequestThrottle(rate, burst), count)
