"""Whom a change concerns: a changed policy, connection, queue or Replay leads to those that name it."""

from collections.abc import Iterator

from deadletter.controller.state.informer import Indexes, Snapshots
from deadletter.core import names
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource

Address = tuple[str, str, Resource]
BROKER, POLICY, ROUTES, DEAD, QUEUE, OWNER = "broker", "policy", "routes", "dead", "queue", "owner"


def concerned(snapshots: Snapshots, resource: Resource, body: Body) -> Iterator[Address]:
    """Addresses of the objects that must be judged again."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if resource in (CONNECTIONS, POLICIES):
        for user in snapshots[QUEUES].by(BROKER if resource is CONNECTIONS else POLICY, namespace, name):
            yield namespace, user["metadata"]["name"], QUEUES
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


def dead_names(body: Body) -> set[str]:
    """The names its dead box may have, as far as the body tells: a default one is another on a Redis."""
    spec = body.get("spec", {})
    if name := (spec.get("dead") or {}).get("name"):
        return {str(name)}
    source = spec.get("source") or {}
    return {names.dead_box_name(str(source.get("name")), str(source.get("group")), redis) for redis in (False, True)}


def _where(body: Body, *called: str) -> list[tuple[str, ...]]:
    return [(body["metadata"]["namespace"], name) for name in called if name]


OF_QUEUES: Indexes = {
    BROKER: lambda body: _where(body, named(body, "brokerRef")),
    POLICY: lambda body: _where(body, named(body, "retryPolicyRef")),
    ROUTES: lambda body: _where(body, *routed(body)),
    DEAD: lambda body: [(name,) for name in dead_names(body)],
}
OF_REPLAYS: Indexes = {QUEUE: lambda body: _where(body, named(body, "queueRef"))}
OF_CHILDREN: Indexes = {OWNER: lambda body: [(one["uid"],) for one in body["metadata"].get("ownerReferences", ())]}


def _of_queue(snapshots: Snapshots, namespace: str, name: str, body: Body) -> Iterator[Address]:
    yield namespace, named(body, "brokerRef"), CONNECTIONS
    if policy := named(body, "retryPolicyRef"):
        yield namespace, policy, POLICIES
    yield from _replays(snapshots, namespace, name, "")
    near = {(namespace, called) for called in routed(body)}
    rivals = [other for box in dead_names(body) for other in snapshots[QUEUES].by(DEAD, box)]
    for other in (*snapshots[QUEUES].by(ROUTES, namespace, name), *rivals):
        near.add((other["metadata"]["namespace"], other["metadata"]["name"]))
    for where, called in sorted(near - {(namespace, name)}):
        yield where, called, QUEUES


def _replays(snapshots: Snapshots, namespace: str, queue: str, but: str) -> Iterator[Address]:
    for body in snapshots[REPLAYS].by(QUEUE, namespace, queue):
        if body["metadata"]["name"] != but:
            yield namespace, body["metadata"]["name"], REPLAYS
