"""One informer per kind: LIST, watch, and LIST again every minute, which notices what vanished in a gap."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from deadletter import metrics
from deadletter.kube import ApiError, Body, Cluster, Resource

NamespacedName = tuple[str, str]
OnChange = Callable[[Resource, Body | None, Body | None], None]  # before and after; None: not there
Indexes = Mapping[str, Callable[[Body], Iterable[Hashable]]]  # by name: under which words an object is found
FORGET_FORBIDDEN_AFTER_S = 300.0
log = structlog.stdlib.get_logger("informers")


def namespaced_name(body: Body) -> NamespacedName:
    """Namespace and name."""
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def resource_version(body: Body | None) -> int:
    """Resource versions grow; compared as numbers, as the API allows since 1.35."""
    text = (body or {}).get("metadata", {}).get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


class InformerSpec(NamedTuple):
    """A kind to keep a informer of: which of its objects, and how they are looked up."""

    resource: Resource
    selector: str
    indexes: Indexes


class Informer:
    """All objects of one resource, as far as they were heard of."""

    def __init__(self, spec: InformerSpec, on_change: OnChange) -> None:
        self.resource, self.selector, self._indexes = spec
        self.listed_at = 0.0
        self._on_change = on_change
        self._bodies: dict[NamespacedName, Body] = {}
        self._by_index: dict[tuple[str, Hashable], dict[NamespacedName, None]] = {}
        self._listed_scopes: set[str] = set()
        self._forbidden_since: dict[str, float] = {}  # namespaces that we may not look into, and since when

    def get(self, namespace: str, name: str) -> Body | None:
        """The object as last seen."""
        return self._bodies.get((namespace, name))

    def all(self, namespace: str | None = None) -> Iterator[Body]:
        """All objects, or those of a namespace."""
        return (body for (where, _), body in list(self._bodies.items()) if namespace is None or where == namespace)

    def by_index(self, index: str, *values: str) -> list[Body]:
        """The objects that an index has under these words, without looking at any other."""
        return [self._bodies[key] for key in self._by_index.get((index, values), ())]

    def _index(self, body: Body) -> None:
        for index, words_of in self._indexes.items():
            for words in words_of(body):
                self._by_index.setdefault((index, words), {})[namespaced_name(body)] = None

    def _unindex(self, body: Body) -> None:
        for index, words_of in self._indexes.items():
            for words in words_of(body):
                kept = self._by_index.get((index, words), {})
                kept.pop(namespaced_name(body), None)
                if not kept:
                    self._by_index.pop((index, words), None)

    def __len__(self) -> int:
        return len(self._bodies)

    def has_synced(self, scopes: int) -> bool:
        """Was every namespace listed once? One that we may not look into keeps no other waiting."""
        return bool(self._listed_scopes) and len(self._listed_scopes | self._forbidden_since.keys()) >= scopes

    def upsert(self, body: Body) -> None:
        """An object as somebody has just seen it; an older sight of it is not believed."""
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
        """An object that is gone."""
        old = self._bodies.get(namespaced_name(body))
        if old is not None and is_same_object(old, body):
            self._unindex(old)
            del self._bodies[namespaced_name(body)]
            self._on_change(self.resource, old, None)

    async def run(self, kube: Cluster, namespace: str | None, relist_interval_s: float) -> None:
        """Keep listing and watching for ever; trouble with the API server is waited out."""
        pause = 1.0
        while True:
            try:
                await self._list_and_watch(kube, namespace, relist_interval_s)
                pause = 1.0
            except ApiError as error:
                where = {"resource": self.resource.plural, "namespace": namespace or ""}
                log.warning("cannot follow", **where, status=error.status, error=error.message)
                self._note_failure(namespace if error.status == 403 else None)
                await asyncio.sleep(pause)
                pause = min(15.0, pause * 2)

    def _note_failure(self, namespace: str | None) -> None:
        """Rights that are gone for long went with the namespace: what was in it is forgotten."""
        now = asyncio.get_running_loop().time()
        if namespace is not None and now - self._forbidden_since.setdefault(namespace, now) > FORGET_FORBIDDEN_AFTER_S:
            for body in self.all(namespace):
                self.remove(body)

    async def _list_and_watch(self, kube: Cluster, namespace: str | None, every: float) -> None:
        version = await self.relist(kube, namespace)
        loop = asyncio.get_running_loop()
        until = loop.time() + every
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

    async def relist(self, kube: Cluster, namespace: str | None) -> str:
        """LIST, and drop what is not in it."""
        bodies, version = await kube.list(self.resource, namespace, self.selector)
        there = set()
        for body in bodies:
            # Items of a list do not say what they are.
            whole = {"apiVersion": self.resource.api_version, "kind": self.resource.kind} | body
            there.add(namespaced_name(whole))
            self.upsert(whole)
        newest = int(version) if version.isdigit() else 0
        for body in list(self.all(namespace)):
            if namespaced_name(body) not in there and resource_version(body) <= newest:
                self.remove(body)
        self._listed_scopes.add(namespace or "")
        self._forbidden_since.pop(namespace or "", None)
        self.listed_at = asyncio.get_running_loop().time()
        metrics.RELISTS.labels(self.resource.plural).inc()
        return version

    async def _watch(self, kube: Cluster, namespace: str | None, version: str) -> str:
        async with aclosing(kube.watch(self.resource, namespace, version, self.selector)) as events:  # type: ignore[type-var]
            async for kind, body in events:
                version = body["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self.remove(body)
                elif kind != "BOOKMARK":
                    self.upsert(body)
        return version


def is_same_object(one: Body, other: Body) -> bool:
    """The same object, not another of its name."""
    mine, theirs = one["metadata"].get("uid"), other["metadata"].get("uid")
    return bool(mine == theirs)


class Informers:
    """The informers of all kinds we look at."""

    def __init__(self, specs: Sequence[InformerSpec], namespaces: Sequence[str], on_change: OnChange) -> None:
        self._scopes: list[str | None] = [*namespaces] or [None]
        self._informers = {one.resource: Informer(one, on_change) for one in specs}

    def __getitem__(self, resource: Resource) -> Informer:
        return self._informers[resource]

    def __contains__(self, resource: Resource) -> bool:
        return resource in self._informers

    def start(self, kube: Cluster, relist_interval_s: float) -> list[asyncio.Task[None]]:
        """A task per kind and namespace."""
        return [
            asyncio.create_task(one.run(kube, scope, relist_interval_s), name=f"informer-{one.resource.plural}")
            for one in self._informers.values()
            for scope in self._scopes
        ]

    @property
    def have_synced(self) -> bool:
        """Was everything listed once?"""
        return all(one.has_synced(len(self._scopes)) for one in self._informers.values())

    @property
    def oldest_listed_at(self) -> float:
        """When the kind that waits longest was last listed (loop time)."""
        return min((one.listed_at for one in self._informers.values()), default=0.0)
