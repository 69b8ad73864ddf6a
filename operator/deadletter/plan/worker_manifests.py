"""The children of a queue: its courier, or its standing redrive."""

from dataclasses import dataclass

from deadletter.api.assignments import CourierAssignment, LiveConfig, RedriveAssignment, ResolvedRoute, WorkerConfig
from deadletter.api.base import secret_names
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.consumer_group import consumer_group_status
from deadletter.plan.degraded import worker_pause_reason
from deadletter.plan.facts import QueueFacts
from deadletter.plan.pod_template import WorkerImage, Manifest
from deadletter.plan.queue_checks import secret_keys

STANDING_STRATEGIES = ("Automatic", "Selective")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How the operator's settings want workers to be."""

    image: WorkerImage
    allow: tuple[str, ...] = ()
    network_policy: bool = False
    pod_monitor: bool = False


def worker_role(queue: DeadLetterQueue) -> str | None:
    """Which worker a queue has, if any."""
    if queue.shape == "Delivered":
        return "courier"
    return "redrive" if queue.spec.redrive.strategy in STANDING_STRATEGIES else None


def worker_secret_names(queue: DeadLetterQueue, connection: BrokerConnection) -> tuple[str, ...]:
    """Every Secret the worker mounts."""
    return secret_names(secret_keys(queue, connection))


def plan_worker(
    queue: DeadLetterQueue, facts: QueueFacts, workers: WorkerSettings, may_redrive: bool = True
) -> list[Manifest]:
    """Everything the queue's worker needs; nothing for a queue without one. `redriving`: no Apply runs now."""
    role = worker_role(queue)
    if role is None or facts.connection is None:
        return []
    connection = facts.connection
    assignment = (
        _courier(queue, facts, connection, workers)
        if role == "courier"
        else _redrive(queue, facts, connection, workers)
    )
    live = LiveConfig(paused=worker_pause_reason(queue, facts.stats, may_redrive), redaction=queue.spec.redaction)
    return _manifests(queue, connection, role, assignment, live, workers)


def _courier(
    queue: DeadLetterQueue, facts: QueueFacts, connection: BrokerConnection, workers: WorkerSettings
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
        group_started=consumer_group_status(queue, facts) is not None,
        policy=facts.policy.spec if facts.policy else RetryPolicySpec(),
        delivery=delivery.model_copy(update={"replicas": 1, "resources": None}),
        url=delivery.http.target(queue.namespace),
        routes=tuple(ResolvedRoute(match=match, box=target.boxes(redis).dead) for match, target in routes),
        compat_headers=queue.spec.dead.compat_headers,
        allow=workers.allow,
    )


def _redrive(
    queue: DeadLetterQueue, facts: QueueFacts, connection: BrokerConnection, workers: WorkerSettings
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
    queue: DeadLetterQueue, connection: BrokerConnection, role: str, assignment: WorkerConfig, live: LiveConfig, workers: WorkerSettings
) -> list[Manifest]:
    name, labels = names.child_name(queue.name, role), names.labels(queue.name, role)
    children = [
        pod_template.assignment_config_map(queue, name, labels, pod_template.to_json(assignment), live),
        pod_template.service_account(queue, name, labels),
        _deployment(queue, connection, role, pod_template.assignment_hash(assignment), workers.image),
    ]
    children += (
        [pod_template.network_policy(queue, name, labels, selector_labels(queue, role))] if workers.network_policy else []
    )
    return children + ([_pod_monitor(queue, name, labels)] if workers.pod_monitor else [])


def selector_labels(queue: DeadLetterQueue, role: str) -> dict[str, str]:
    """The labels that tell the worker's pods from all others; never changed, for a selector cannot be."""
    labels = names.labels(queue.name, role)
    return {key: labels[key] for key in ("deadletter.dev/queue", "app.kubernetes.io/component")}


def _deployment(queue: DeadLetterQueue, connection: BrokerConnection, role: str, digest: str, image: WorkerImage) -> Manifest:
    delivery, labels = queue.spec.delivery, names.labels(queue.name, role)
    name = names.child_name(queue.name, role)
    resources = delivery.resources.to_wire() if delivery and delivery.resources else None
    pod = pod_template.pod_spec(role, name, name, worker_secret_names(queue, connection), image, resources)
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(queue, role)},
        }
    ]
    spec = {
        "replicas": delivery.replicas if delivery else 1,
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": selector_labels(queue, role)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels, "annotations": {pod_template.ASSIGNMENT_HASH_ANNOTATION: digest}}, "spec": pod},
    }
    if role == "redrive":
        spec["strategy"] = {"type": "Recreate"}  # one settler per box partition: a second one would fence the first
    return pod_template.child_manifest("Deployment", "apps/v1", queue, name, labels) | {"spec": spec}


def _pod_monitor(queue: DeadLetterQueue, name: str, labels: dict[str, str]) -> Manifest:
    spec = {
        "selector": {"matchLabels": selector_labels(queue, labels["app.kubernetes.io/component"])},
        "podMetricsEndpoints": [{"port": "health", "path": "/metrics"}],
    }
    return pod_template.child_manifest("PodMonitor", "monitoring.coreos.com/v1", queue, name, labels) | {"spec": spec}
