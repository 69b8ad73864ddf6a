"""The children of a queue: its courier, or its standing redrive."""

from dataclasses import dataclass

from deadletter.api.assignments import CourierAssignment, Live, RedriveAssignment, ResolvedRoute, Told
from deadletter.api.base import secret_names
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.consumer_group import consumer_group
from deadletter.plan.degraded import pause
from deadletter.plan.facts import QueueFacts
from deadletter.plan.pod_template import Image, Manifest
from deadletter.plan.queue_checks import secret_keys

STANDING = ("Automatic", "Selective")


@dataclass(frozen=True, slots=True)
class Workers:
    """How the operator's settings want workers to be."""

    image: Image
    allow: tuple[str, ...] = ()
    network_policy: bool = False
    pod_monitor: bool = False


def role_of(queue: DeadLetterQueue) -> str | None:
    """Which worker a queue has, if any."""
    if queue.shape == "Delivered":
        return "courier"
    return "redrive" if queue.spec.redrive.strategy in STANDING else None


def secrets_of(queue: DeadLetterQueue, connection: BrokerConnection) -> tuple[str, ...]:
    """Every Secret the worker mounts."""
    return secret_names(secret_keys(queue, connection))


def plan_children(
    queue: DeadLetterQueue, facts: QueueFacts, workers: Workers, redriving: bool = True
) -> list[Manifest]:
    """Everything the queue's worker needs; nothing for a queue without one. `redriving`: no Apply runs now."""
    role = role_of(queue)
    if role is None or facts.connection is None:
        return []
    connection = facts.connection
    assignment = (
        _courier(queue, facts, connection, workers)
        if role == "courier"
        else _redrive(queue, facts, connection, workers)
    )
    live = Live(paused=pause(queue, facts.reading, redriving), redaction=queue.spec.redaction)
    return _manifests(queue, connection, role, assignment, live, workers)


def _courier(
    queue: DeadLetterQueue, facts: QueueFacts, connection: BrokerConnection, workers: Workers
) -> CourierAssignment:
    source, delivery = queue.spec.source, queue.spec.delivery
    if source is None or delivery is None:
        raise ValueError("only a delivered queue has a courier")
    redis = connection.spec.is_redis
    routes = [(route.match, facts.queues[route.queue_ref.name]) for route in queue.spec.routes]
    return CourierAssignment(
        namespace=queue.namespace,
        queue=queue.name,
        broker=connection.spec,
        boxes=queue.boxes(redis),
        group=source.group,
        start_from=source.start_from,
        group_started=consumer_group(queue, facts) is not None,
        policy=facts.policy.spec if facts.policy else RetryPolicySpec(),
        delivery=delivery.model_copy(update={"replicas": 1, "resources": None}),
        url=delivery.http.target(queue.namespace),
        routes=tuple(ResolvedRoute(match=match, box=target.boxes(redis).dead) for match, target in routes),
        compat_headers=queue.spec.dead.compat_headers,
        allow=workers.allow,
    )


def _redrive(
    queue: DeadLetterQueue, facts: QueueFacts, connection: BrokerConnection, workers: Workers
) -> RedriveAssignment:
    return RedriveAssignment(
        namespace=queue.namespace,
        queue=queue.name,
        broker=connection.spec,
        boxes=queue.boxes(connection.spec.is_redis),
        dialect=queue.spec.dead.dialect,
        read_values=queue.spec.dead.read_values,
        origin=queue.spec.dead.origin,
        policy=facts.policy.spec if facts.policy else RetryPolicySpec(),
        where=queue.spec.redrive.where,
        allow=workers.allow,
    )


def _manifests(
    queue: DeadLetterQueue, connection: BrokerConnection, role: str, assignment: Told, live: Live, workers: Workers
) -> list[Manifest]:
    name, labels = names.child(queue.name, role), names.labels(queue.name, role)
    children = [
        pod_template.told(queue, name, labels, pod_template.written(assignment), live),
        pod_template.account(queue, name, labels),
        _deployment(queue, connection, role, pod_template.digest(assignment), workers.image),
    ]
    children += (
        [pod_template.network_policy(queue, name, labels, selected(queue, role))] if workers.network_policy else []
    )
    return children + ([_pod_monitor(queue, name, labels)] if workers.pod_monitor else [])


def selected(queue: DeadLetterQueue, role: str) -> dict[str, str]:
    """The labels that tell the worker's pods from all others; never changed, for a selector cannot be."""
    labels = names.labels(queue.name, role)
    return {key: labels[key] for key in ("deadletter.dev/queue", "app.kubernetes.io/component")}


def _deployment(queue: DeadLetterQueue, connection: BrokerConnection, role: str, digest: str, image: Image) -> Manifest:
    delivery, labels = queue.spec.delivery, names.labels(queue.name, role)
    name = names.child(queue.name, role)
    resources = delivery.resources.to_wire() if delivery and delivery.resources else None
    pod = pod_template.pod(role, name, name, secrets_of(queue, connection), image, resources)
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selected(queue, role)},
        }
    ]
    spec = {
        "replicas": delivery.replicas if delivery else 1,
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": selected(queue, role)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels, "annotations": {pod_template.HASH: digest}}, "spec": pod},
    }
    if role == "redrive":
        spec["strategy"] = {"type": "Recreate"}  # one settler per box partition: a second one would fence the first
    return pod_template.owned("Deployment", "apps/v1", queue, name, labels) | {"spec": spec}


def _pod_monitor(queue: DeadLetterQueue, name: str, labels: dict[str, str]) -> Manifest:
    spec = {
        "selector": {"matchLabels": selected(queue, labels["app.kubernetes.io/component"])},
        "podMetricsEndpoints": [{"port": "health", "path": "/metrics"}],
    }
    return pod_template.owned("PodMonitor", "monitoring.coreos.com/v1", queue, name, labels) | {"spec": spec}
