"""Informers: caches of the objects of a kind, kept current by LIST and WATCH, with indexes.

The LIST is repeated every minute, because a watch with a gap may miss a deletion.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from deadletter import metrics
from deadletter.kube import ApiError, Body, KubeClient, Resource

NamespacedName = tuple[str, str]
OnChange = Callable[[Resource, Body | None, Body | None], None]  # before and after; None: it does not exist
Indexes = Mapping[str, Callable[[Body], Iterable[Hashable]]]  # index name -> the values an object is found under
FORGET_FORBIDDEN_AFTER_S = 300.0
MAX_RETRY_DELAY_S = 15.0
log = structlog.stdlib.get_logger("informer")


def namespaced_name(body: Body) -> NamespacedName:
    """Return namespace and name of an object."""
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def resource_version(body: Body | None) -> int:
    """Return the resource version as a number; the Kubernetes API allows to compare them since 1.35."""
    text = (body or {}).get("metadata", {}).get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


def is_same_object(one: Body, other: Body) -> bool:
    """True if both have the same uid, so that neither is a successor of the same name."""
    return bool(one["metadata"].get("uid") == other["metadata"].get("uid"))


class InformerSpec(NamedTuple):
    """Which objects an informer caches, and its indexes."""

    resource: Resource
    selector: str
    indexes: Indexes


class Informer:
    """The cache of the objects of one resource."""

    def __init__(self, spec: InformerSpec, on_change: OnChange) -> None:
        self.resource, self.selector, self._indexes = spec
        self.listed_at = 0.0
        self._on_change = on_change
        self._bodies: dict[NamespacedName, Body] = {}
        self._by_index: dict[tuple[str, Hashable], dict[NamespacedName, None]] = {}
        self._listed_scopes: set[str] = set()
        self._forbidden_since: dict[str, float] = {}  # namespace -> loop time of the first 403

    def get(self, namespace: str, name: str) -> Body | None:
        """Return the cached object."""
        return self._bodies.get((namespace, name))

    def all(self, namespace: str | None = None) -> Iterator[Body]:
        """Iterate over all cached objects, or those of a namespace."""
        return (body for (where, _), body in list(self._bodies.items()) if namespace is None or where == namespace)

    def by_index(self, index: str, *values: str) -> list[Body]:
        """Return the objects that an index holds under these values."""
        return [self._bodies[key] for key in self._by_index.get((index, values), ())]

    def _index(self, body: Body) -> None:
        for index, values_of in self._indexes.items():
            for values in values_of(body):
                self._by_index.setdefault((index, values), {})[namespaced_name(body)] = None

    def _unindex(self, body: Body) -> None:
        for index, values_of in self._indexes.items():
            for values in values_of(body):
                entries = self._by_index.get((index, values), {})
                entries.pop(namespaced_name(body), None)
                if not entries:
                    self._by_index.pop((index, values), None)

    def __len__(self) -> int:
        return len(self._bodies)

    def has_synced(self, scopes: int) -> bool:
        """True if every namespace was listed once; one that the operator may not list counts as listed."""
        return bool(self._listed_scopes) and len(self._listed_scopes | self._forbidden_since.keys()) >= scopes

    def upsert(self, body: Body) -> None:
        """Cache an object, unless a newer version of it is cached."""
        key = namespaced_name(body)
        old = self._bodies.get(key)
        if resource_version(old) >= resource_version(body):
            return
        body["metadata"].pop("managedFields", None)
        if old is not None:
            self._unindex(old)
        self._bodies[key] = body
        self._index(body)
        self._on_change(self.resource, old, body)

    def remove(self, body: Body) -> None:
        """Remove a deleted object from the cache; a successor of the same name stays."""
        old = self._bodies.get(namespaced_name(body))
        if old is not None and is_same_object(old, body):
            self._unindex(old)
            del self._bodies[namespaced_name(body)]
            self._on_change(self.resource, old, None)

    async def run(self, kube: KubeClient, namespace: str | None, relist_interval_s: float) -> None:
        """List and watch until cancelled; after an API error, wait and start again."""
        delay = 1.0
        while True:
            try:
                await self._list_and_watch(kube, namespace, relist_interval_s)
                delay = 1.0
            except ApiError as error:
                scope = {"resource": self.resource.plural, "namespace": namespace or ""}
                log.warning("list or watch failed", **scope, status=error.status, error=error.message)
                if error.status == 403 and namespace is not None:
                    self._note_forbidden(namespace)
                await asyncio.sleep(delay)
                delay = min(MAX_RETRY_DELAY_S, delay * 2)

    def _note_forbidden(self, namespace: str) -> None:
        """Remove the objects of a namespace that is forbidden for long: its Roles were deleted together with it."""
        now = asyncio.get_running_loop().time()
        if now - self._forbidden_since.setdefault(namespace, now) > FORGET_FORBIDDEN_AFTER_S:
            for body in self.all(namespace):
                self.remove(body)

    async def _list_and_watch(self, kube: KubeClient, namespace: str | None, relist_interval_s: float) -> None:
        version = await self.relist(kube, namespace)
        loop = asyncio.get_running_loop()
        until = loop.time() + relist_interval_s
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    version = await self._watch(kube, namespace, version)
            except TimeoutError:
                return
            except ApiError as error:
                if error.status != 410:
                    raise
                return

    async def relist(self, kube: KubeClient, namespace: str | None) -> str:
        """LIST, remove what is not in the list, and return the version to watch from."""
        bodies, version = await kube.list(self.resource, namespace, self.selector)
        listed = set()
        for body in bodies:
            # Items of a list have neither apiVersion nor kind.
            whole = {"apiVersion": self.resource.api_version, "kind": self.resource.kind} | body
            listed.add(namespaced_name(whole))
            self.upsert(whole)
        newest = int(version) if version.isdigit() else 0
        for body in list(self.all(namespace)):
            if namespaced_name(body) not in listed and resource_version(body) <= newest:
                self.remove(body)
        self._listed_scopes.add(namespace or "")
        self._forbidden_since.pop(namespace or "", None)
        self.listed_at = asyncio.get_running_loop().time()
        metrics.RELISTS.labels(self.resource.plural).inc()
        return version

    async def _watch(self, kube: KubeClient, namespace: str | None, version: str) -> str:
        async with aclosing(kube.watch(self.resource, namespace, version, self.selector)) as events:  # type: ignore[type-var]
            async for kind, body in events:
                version = body["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self.remove(body)
                elif kind != "BOOKMARK":
                    self.upsert(body)
        return version


class Informers:
    """The informers of all resources that the operator watches."""

    def __init__(self, specs: Sequence[InformerSpec], namespaces: Sequence[str], on_change: OnChange) -> None:
        self._scopes: list[str | None] = [*namespaces] or [None]
        self._informers = {spec.resource: Informer(spec, on_change) for spec in specs}

    def __getitem__(self, resource: Resource) -> Informer:
        return self._informers[resource]

    def __contains__(self, resource: Resource) -> bool:
        return resource in self._informers

    def start(self, kube: KubeClient, relist_interval_s: float) -> list[asyncio.Task[None]]:
        """Start one task for each resource and namespace."""
        return [
            asyncio.create_task(informer.run(kube, scope, relist_interval_s), name=f"informer-{resource.plural}")
            for resource, informer in self._informers.items()
            for scope in self._scopes
        ]

    @property
    def have_synced(self) -> bool:
        """True if every resource was listed once."""
        return all(informer.has_synced(len(self._scopes)) for informer in self._informers.values())

    @property
    def oldest_listed_at(self) -> float:
        """The loop time of the last list of the resource that was listed least recently."""
        return min((informer.listed_at for informer in self._informers.values()), default=0.0)
