"""Find the objects that depend on a changed one, by the references in their specs."""

from collections.abc import Iterator

from deadletter.controller.state.informer import Indexes, Informers
from deadletter.core import names
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource

Address = tuple[str, str, Resource]  # namespace, name, kind
BY_BROKER, BY_POLICY, BY_ROUTE_TARGET, BY_DEAD_NAME = "broker", "policy", "route_target", "dead_name"
BY_QUEUE, BY_OWNER_UID = "queue", "owner_uid"


def dependents(informers: Informers, resource: Resource, body: Body) -> Iterator[Address]:
    """Yield the objects that must be reconciled when this one changes."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if resource in (CONNECTIONS, POLICIES):
        index = BY_BROKER if resource is CONNECTIONS else BY_POLICY
        for queue in informers[QUEUES].by_index(index, namespace, name):
            yield namespace, queue["metadata"]["name"], QUEUES
    elif resource is QUEUES:
        yield from _dependents_of_queue(informers, namespace, name, body)
    else:
        queue_name = ref_name(body, "queueRef")
        yield namespace, queue_name, QUEUES
        yield from _replays_of_queue(informers, namespace, queue_name, name)


def ref_name(body: Body, field: str) -> str:
    """Return the name in a reference of the spec, or an empty string."""
    return str((body.get("spec", {}).get(field) or {}).get("name", ""))


def route_targets(body: Body) -> set[str]:
    """Return the names of the queues in `spec.routes`."""
    return {ref_name({"spec": route}, "queueRef") for route in body.get("spec", {}).get("routes") or ()}


def possible_dead_names(body: Body) -> set[str]:
    """Return the names its dead box may have; the default name differs between Kafka and Redis."""
    spec = body.get("spec", {})
    if name := (spec.get("dead") or {}).get("name"):
        return {str(name)}
    source = spec.get("source") or {}
    return {names.dead_box_name(str(source.get("name")), str(source.get("group")), redis) for redis in (False, True)}


def _index_values(body: Body, *referenced: str) -> list[tuple[str, ...]]:
    return [(body["metadata"]["namespace"], name) for name in referenced if name]


QUEUE_INDEXES: Indexes = {
    BY_BROKER: lambda body: _index_values(body, ref_name(body, "brokerRef")),
    BY_POLICY: lambda body: _index_values(body, ref_name(body, "retryPolicyRef")),
    BY_ROUTE_TARGET: lambda body: _index_values(body, *route_targets(body)),
    BY_DEAD_NAME: lambda body: [(name,) for name in possible_dead_names(body)],
}
REPLAY_INDEXES: Indexes = {BY_QUEUE: lambda body: _index_values(body, ref_name(body, "queueRef"))}
CHILD_INDEXES: Indexes = {
    BY_OWNER_UID: lambda body: [(owner["uid"],) for owner in body["metadata"].get("ownerReferences", ())]
}


def _dependents_of_queue(informers: Informers, namespace: str, name: str, body: Body) -> Iterator[Address]:
    yield namespace, ref_name(body, "brokerRef"), CONNECTIONS
    if policy := ref_name(body, "retryPolicyRef"):
        yield namespace, policy, POLICIES
    yield from _replays_of_queue(informers, namespace, name, "")
    queues = {(namespace, target) for target in route_targets(body)}
    same_dead_name = [
        other for box in possible_dead_names(body) for other in informers[QUEUES].by_index(BY_DEAD_NAME, box)
    ]
    for other in (*informers[QUEUES].by_index(BY_ROUTE_TARGET, namespace, name), *same_dead_name):
        queues.add((other["metadata"]["namespace"], other["metadata"]["name"]))
    for queue_namespace, queue_name in sorted(queues - {(namespace, name)}):
        yield queue_namespace, queue_name, QUEUES


def _replays_of_queue(informers: Informers, namespace: str, queue: str, excluded: str) -> Iterator[Address]:
    for body in informers[REPLAYS].by_index(BY_QUEUE, namespace, queue):
        if body["metadata"]["name"] != excluded:
            yield namespace, body["metadata"]["name"], REPLAYS
