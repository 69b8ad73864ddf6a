"""Whom a change concerns: a changed policy, connection, queue or Replay leads to those that name it."""

from collections.abc import Iterator

from deadletter.cluster import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource
from deadletter.handlers.snapshots import Snapshots

Address = tuple[str, str, Resource]


def concerned(snapshots: Snapshots, resource: Resource, body: Body) -> Iterator[Address]:
    """Addresses of the objects that must be judged again."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if resource in (CONNECTIONS, POLICIES):
        field = "brokerRef" if resource is CONNECTIONS else "retryPolicyRef"
        yield from _queues(snapshots, namespace, field, name)
    elif resource is QUEUES:
        yield from _of_queue(snapshots, namespace, name, body)
    else:
        queue = named(body, "queueRef")
        yield namespace, queue, QUEUES
        yield from _replays(snapshots, namespace, queue, name)


def named(body: Body, field: str) -> str:
    """The name in a reference, or nothing."""
    return str((body.get("spec", {}).get(field) or {}).get("name", ""))


def routed(body: Body) -> set[str]:
    """The queues that routes name."""
    return {named({"spec": route}, "queueRef") for route in body.get("spec", {}).get("routes") or ()}


def dead_name(body: Body) -> str:
    """What two queues may fight for, as far as the bodies tell."""
    spec = body.get("spec", {})
    source = spec.get("source") or {}
    return str((spec.get("dead") or {}).get("name") or f"{source.get('name')}.{source.get('group')}.dlq")


def _queues(snapshots: Snapshots, namespace: str, field: str, name: str) -> Iterator[Address]:
    for body in snapshots[QUEUES].all(namespace):
        if named(body, field) == name:
            yield namespace, body["metadata"]["name"], QUEUES


def _of_queue(snapshots: Snapshots, namespace: str, name: str, body: Body) -> Iterator[Address]:
    yield namespace, named(body, "brokerRef"), CONNECTIONS
    if policy := named(body, "retryPolicyRef"):
        yield namespace, policy, POLICIES
    yield from _replays(snapshots, namespace, name, "")
    mine, box = routed(body), dead_name(body)
    for other in snapshots[QUEUES].all():
        where, called = other["metadata"]["namespace"], other["metadata"]["name"]
        near = where == namespace and (called in mine or name in routed(other))
        if (where, called) != (namespace, name) and (near or dead_name(other) == box):
            yield where, called, QUEUES


def _replays(snapshots: Snapshots, namespace: str, queue: str, but: str) -> Iterator[Address]:
    for body in snapshots[REPLAYS].all(namespace):
        if named(body, "queueRef") == queue and body["metadata"]["name"] != but:
            yield namespace, body["metadata"]["name"], REPLAYS
