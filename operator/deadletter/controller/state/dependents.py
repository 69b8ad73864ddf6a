"""Whom a change concerns: a changed policy, connection, queue or Replay leads to those that name it."""

from collections.abc import Iterator

from deadletter.controller.state.informer import Indexes, Informers
from deadletter.core import names
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource

Address = tuple[str, str, Resource]
BY_BROKER, BY_POLICY, BY_ROUTE_TARGET, BY_DEAD_NAME, BY_QUEUE, BY_OWNER_UID = "broker", "policy", "routes", "dead", "queue", "owner"


def dependents(informers: Informers, resource: Resource, body: Body) -> Iterator[Address]:
    """Addresses of the objects that must be judged again."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if resource in (CONNECTIONS, POLICIES):
        for user in informers[QUEUES].by_index(BY_BROKER if resource is CONNECTIONS else BY_POLICY, namespace, name):
            yield namespace, user["metadata"]["name"], QUEUES
    elif resource is QUEUES:
        yield from _dependents_of_queue(informers, namespace, name, body)
    else:
        queue = ref_name(body, "queueRef")
        yield namespace, queue, QUEUES
        yield from _replays_of_queue(informers, namespace, queue, name)


def ref_name(body: Body, field: str) -> str:
    """The name in a reference, or nothing."""
    return str((body.get("spec", {}).get(field) or {}).get("name", ""))


def route_targets(body: Body) -> set[str]:
    """The queues that routes name."""
    return {ref_name({"spec": route}, "queueRef") for route in body.get("spec", {}).get("routes") or ()}


def possible_dead_names(body: Body) -> set[str]:
    """The names its dead box may have, as far as the body tells: a default one is another on a Redis."""
    spec = body.get("spec", {})
    if name := (spec.get("dead") or {}).get("name"):
        return {str(name)}
    source = spec.get("source") or {}
    return {names.dead_box_name(str(source.get("name")), str(source.get("group")), redis) for redis in (False, True)}


def _index_values(body: Body, *called: str) -> list[tuple[str, ...]]:
    return [(body["metadata"]["namespace"], name) for name in called if name]


QUEUE_INDEXES: Indexes = {
    BY_BROKER: lambda body: _index_values(body, ref_name(body, "brokerRef")),
    BY_POLICY: lambda body: _index_values(body, ref_name(body, "retryPolicyRef")),
    BY_ROUTE_TARGET: lambda body: _index_values(body, *route_targets(body)),
    BY_DEAD_NAME: lambda body: [(name,) for name in possible_dead_names(body)],
}
REPLAY_INDEXES: Indexes = {BY_QUEUE: lambda body: _index_values(body, ref_name(body, "queueRef"))}
CHILD_INDEXES: Indexes = {BY_OWNER_UID: lambda body: [(one["uid"],) for one in body["metadata"].get("ownerReferences", ())]}


def _dependents_of_queue(informers: Informers, namespace: str, name: str, body: Body) -> Iterator[Address]:
    yield namespace, ref_name(body, "brokerRef"), CONNECTIONS
    if policy := ref_name(body, "retryPolicyRef"):
        yield namespace, policy, POLICIES
    yield from _replays_of_queue(informers, namespace, name, "")
    near = {(namespace, called) for called in route_targets(body)}
    rivals = [other for box in possible_dead_names(body) for other in informers[QUEUES].by_index(BY_DEAD_NAME, box)]
    for other in (*informers[QUEUES].by_index(BY_ROUTE_TARGET, namespace, name), *rivals):
        near.add((other["metadata"]["namespace"], other["metadata"]["name"]))
    for where, called in sorted(near - {(namespace, name)}):
        yield where, called, QUEUES


def _replays_of_queue(informers: Informers, namespace: str, queue: str, but: str) -> Iterator[Address]:
    for body in informers[REPLAYS].by_index(BY_QUEUE, namespace, queue):
        if body["metadata"]["name"] != but:
            yield namespace, body["metadata"]["name"], REPLAYS
