"""Client of the Kubernetes API: get, list, watch, apply, patch, create, delete.

Objects are plain JSON. The typed models of the Kubernetes client are not used: they reject unknown fields, and a
thousand objects would cost far more than their JSON. All requests share one rate limit, and one pause after a 429.
"""

import asyncio
import os
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
CONNECT_TIMEOUT_S = 10
MAX_RETRY_AFTER_S = 60.0
MAX_MESSAGE_CHARS = 1024
MAX_CONNECTIONS = 64
WATCH_TIMEOUT_S = 240
WATCH_READ_TIMEOUT_S = 70  # the server sends bookmarks; a watch without any event in this time is dead
PAGE_SIZE = 500
# A DecodeError is among them because a proxy may answer with a page that is not JSON.
CONNECTION_ERRORS = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, msgspec.DecodeError)


class Resource(NamedTuple):
    """A kind of object and its place in the API."""

    api_version: str
    plural: str
    kind: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of a collection, an object or a subresource."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = [root + self.api_version]
        parts += ["namespaces", namespace] if namespace else []
        return "/".join([*parts, self.plural, *(part for part in (name, subresource) if part)])


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
RESOURCES = {resource.kind: resource for resource in (CONNECTIONS, POLICIES, QUEUES, REPLAYS, *CHILDREN)}


class ApiError(Exception):
    """The API server refused a request, or did not answer (status 0). The text never quotes the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}" if status else message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class RequestThrottle:
    """A token bucket that limits requests, and can be paused."""

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
        refilled = self.tokens + (now - self.updated_at) * self.rate
        self.tokens = min(self.burst, refilled) if self.updated_at else self.burst
        self.updated_at = now
        if now < self.paused_until:
            return self.paused_until - now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0

    def pause(self, seconds: float) -> None:
        """Let no request pass for this time."""
        self.paused_until = max(self.paused_until, time.monotonic() + seconds)


def _error_of_response(status: int, content: bytes) -> ApiError:
    try:
        message = str(msgspec.json.decode(content).get("message", ""))
    except (msgspec.DecodeError, AttributeError):
        message = ""
    return ApiError(status, message[:MAX_MESSAGE_CHARS] or "no reason given")


def _no_response(error: BaseException) -> ApiError:
    return ApiError(0, f"the API server does not answer ({type(error).__name__})")


class KubeClient:
    """A connection to the API server."""

    def __init__(
        self, api: Any, throttle: RequestThrottle, count: Callable[[str, str, int], None] | None = None
    ) -> None:
        self._api = api
        self._throttle = throttle
        self._count = count or (lambda *_: None)

    async def get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        """Return the current object; None if it does not exist."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> tuple[list[Body], str]:
        """Return all objects, read in pages, and the resource version of the list."""
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
        """Yield type and object of each change after `version`, until the server ends the watch.

        ApiError with status 410: the version is too old; list again.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
            "labelSelector": selector,
        }
        limits = aiohttp.ClientTimeout(
            total=WATCH_TIMEOUT_S + 30, sock_read=WATCH_READ_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S
        )
        response = await self._send("GET", resource.path(namespace), query, limits=limits)
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
        """Apply a complete manifest on the server side and take over fields of other managers."""
        resource, meta = RESOURCES[manifest["kind"]], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request(
            "PATCH", resource.path(meta["namespace"], meta["name"]), query, manifest, APPLY_PATCH
        )

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Body, subresource: str | None = None
    ) -> Body:
        """Merge-patch an object or a subresource such as `status`."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", resource.path(namespace, name, subresource), query, body, MERGE_PATCH)

    async def create(self, resource: Resource, namespace: str, body: Body) -> None:
        """Create an object."""
        await self._request("POST", resource.path(namespace), {"fieldManager": FIELD_MANAGER}, body)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "") -> None:
        """Delete an object, with `uid` only that very object. It is not an error if it does not exist any more."""
        body: Body = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        try:
            await self._request("DELETE", resource.path(namespace, name), {}, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        content_type: str = "",
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
        limits: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        await self._throttle.take()
        try:
            pairs = [(key, value) for key, value in query.items() if value]
            headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
            request = await self._api.param_serialize(
                verb, path, query_params=pairs, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            limits = limits or aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
            response = await self._api.call_api(*request, _request_timeout=limits)
            self._count(verb.lower(), path, response.status)
            if response.status < 300:
                return response
            content = await response.read()
        except CONNECTION_ERRORS as error:
            self._count(verb.lower(), path, 0)
            raise _no_response(error) from error
        if response.status == 429:
            self._throttle.pause(_retry_after_s(response.headers.get("Retry-After")))
        raise _error_of_response(response.status, content)


def _retry_after_s(header: str | None) -> float:
    with suppress(ValueError, TypeError):
        return min(MAX_RETRY_AFTER_S, max(1.0, float(header or 1)))
    return 1.0


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # aiohttp's own readline refuses lines of more than 64 KiB; objects can be larger.
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
            # The library itself reads the variable only once, when it is imported.
            path = os.environ.get("KUBECONFIG")
            await config.load_kube_config(path, client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            raise ApiError(0, "no API server is configured: run in a pod, or set KUBECONFIG") from None
    settings.retries = None
    settings.connection_pool_maxsize = MAX_CONNECTIONS
    return settings


@asynccontextmanager
async def connect(
    rate: float, burst: int, count: Callable[[str, str, int], None] | None = None
) -> AsyncIterator[KubeClient]:
    """Connect to the API server of this pod, or to that of KUBECONFIG."""
    async with client.ApiClient(await _load_configuration()) as api:
        yield KubeClient(api, RequestThrottle(rate, burst), count)
