"""One snapshot per kind: LIST, watch, and LIST again every minute, which notices what vanished in a gap."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from deadletter import metrics
from deadletter.kube import ApiError, Body, Cluster, Resource

Key = tuple[str, str]
Changed = Callable[[Resource, Body | None, Body | None], None]  # before and after; None: not there
Indexes = Mapping[str, Callable[[Body], Iterable[Hashable]]]  # by name: under which words an object is found
FORGET_SECONDS = 300.0
log = structlog.stdlib.get_logger("snapshots")


def key_of(body: Body) -> Key:
    """Namespace and name."""
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def version_of(body: Body | None) -> int:
    """Resource versions grow; compared as numbers, as the API allows since 1.35."""
    text = (body or {}).get("metadata", {}).get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


class Followed(NamedTuple):
    """A kind to keep a snapshot of: which of its objects, and how they are looked up."""

    resource: Resource
    selector: str
    indexes: Indexes


class Snapshot:
    """All objects of one resource, as far as they were heard of."""

    def __init__(self, followed: Followed, changed: Changed) -> None:
        self.resource, self.selector, self._indexes = followed
        self.listed_at = 0.0
        self._changed = changed
        self._bodies: dict[Key, Body] = {}
        self._found: dict[tuple[str, Hashable], dict[Key, None]] = {}
        self._listed: set[str] = set()
        self._refused: dict[str, float] = {}  # namespaces that we may not look into, and since when

    def get(self, namespace: str, name: str) -> Body | None:
        """The object as last seen."""
        return self._bodies.get((namespace, name))

    def all(self, namespace: str | None = None) -> Iterator[Body]:
        """All objects, or those of a namespace."""
        return (body for (where, _), body in list(self._bodies.items()) if namespace is None or where == namespace)

    def by(self, index: str, *words: str) -> list[Body]:
        """The objects that an index has under these words, without looking at any other."""
        return [self._bodies[key] for key in self._found.get((index, words), ())]

    def _file(self, body: Body) -> None:
        for index, words_of in self._indexes.items():
            for words in words_of(body):
                self._found.setdefault((index, words), {})[key_of(body)] = None

    def _unfile(self, body: Body) -> None:
        for index, words_of in self._indexes.items():
            for words in words_of(body):
                kept = self._found.get((index, words), {})
                kept.pop(key_of(body), None)
                if not kept:
                    self._found.pop((index, words), None)

    def __len__(self) -> int:
        return len(self._bodies)

    def is_listed(self, scopes: int) -> bool:
        """Was every namespace listed once? One that we may not look into keeps no other waiting."""
        return bool(self._listed) and len(self._listed | self._refused.keys()) >= scopes

    def take(self, body: Body) -> None:
        """An object as somebody has just seen it; an older sight of it is not believed."""
        key = key_of(body)
        old = self._bodies.get(key)
        if version_of(old) >= version_of(body):
            return
        body["metadata"].pop("managedFields", None)
        if old is not None:
            self._unfile(old)
        self._bodies[key] = body
        self._file(body)
        self._changed(self.resource, old, body)

    def drop(self, body: Body) -> None:
        """An object that is gone."""
        old = self._bodies.get(key_of(body))
        if old is not None and same(old, body):
            self._unfile(old)
            del self._bodies[key_of(body)]
            self._changed(self.resource, old, None)

    async def follow(self, cluster: Cluster, namespace: str | None, every: float) -> None:
        """Keep listing and watching for ever; trouble with the API server is waited out."""
        pause = 1.0
        while True:
            try:
                await self._listen(cluster, namespace, every)
                pause = 1.0
            except ApiError as error:
                where = {"resource": self.resource.plural, "namespace": namespace or ""}
                log.warning("cannot follow", **where, status=error.status, error=error.message)
                self._refuse(namespace if error.status == 403 else None)
                await asyncio.sleep(pause)
                pause = min(15.0, pause * 2)

    def _refuse(self, namespace: str | None) -> None:
        """Rights that are gone for long went with the namespace: what was in it is forgotten."""
        now = asyncio.get_running_loop().time()
        if namespace is not None and now - self._refused.setdefault(namespace, now) > FORGET_SECONDS:
            for body in self.all(namespace):
                self.drop(body)

    async def _listen(self, cluster: Cluster, namespace: str | None, every: float) -> None:
        version = await self.relist(cluster, namespace)
        loop = asyncio.get_running_loop()
        until = loop.time() + every
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    version = await self._hear(cluster, namespace, version)
            except TimeoutError:
                return
            except ApiError as error:
                if error.status != 410:
                    raise
                return

    async def relist(self, cluster: Cluster, namespace: str | None) -> str:
        """LIST, and drop what is not in it."""
        bodies, version = await cluster.list(self.resource, namespace, self.selector)
        there = set()
        for body in bodies:
            # Items of a list do not say what they are.
            whole = {"apiVersion": self.resource.api_version, "kind": self.resource.kind} | body
            there.add(key_of(whole))
            self.take(whole)
        newest = int(version) if version.isdigit() else 0
        for body in list(self.all(namespace)):
            if key_of(body) not in there and version_of(body) <= newest:
                self.drop(body)
        self._listed.add(namespace or "")
        self._refused.pop(namespace or "", None)
        self.listed_at = asyncio.get_running_loop().time()
        metrics.RELISTS.labels(self.resource.plural).inc()
        return version

    async def _hear(self, cluster: Cluster, namespace: str | None, version: str) -> str:
        async with aclosing(cluster.watch(self.resource, namespace, version, self.selector)) as events:  # type: ignore[type-var]
            async for kind, body in events:
                version = body["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self.drop(body)
                elif kind != "BOOKMARK":
                    self.take(body)
        return version


def same(one: Body, other: Body) -> bool:
    """The same object, not another of its name."""
    mine, theirs = one["metadata"].get("uid"), other["metadata"].get("uid")
    return bool(mine == theirs)


class Snapshots:
    """The snapshots of all kinds we look at."""

    def __init__(self, kinds: Sequence[Followed], namespaces: Sequence[str], changed: Changed) -> None:
        self._scopes: list[str | None] = [*namespaces] or [None]
        self._all = {one.resource: Snapshot(one, changed) for one in kinds}

    def __getitem__(self, resource: Resource) -> Snapshot:
        return self._all[resource]

    def __contains__(self, resource: Resource) -> bool:
        return resource in self._all

    def follow(self, cluster: Cluster, every: float) -> list[asyncio.Task[None]]:
        """A task per kind and namespace."""
        return [
            asyncio.create_task(one.follow(cluster, scope, every), name=f"snapshot-{one.resource.plural}")
            for one in self._all.values()
            for scope in self._scopes
        ]

    @property
    def are_listed(self) -> bool:
        """Was everything listed once?"""
        return all(one.is_listed(len(self._scopes)) for one in self._all.values())

    @property
    def oldest_list(self) -> float:
        """When the kind that waits longest was last listed (loop time)."""
        return min((one.listed_at for one in self._all.values()), default=0.0)
