"""Build the manifests of a queue's worker: its courier, or its standing redrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deadletter.api.base import secret_names
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.api.worker_config import CourierAssignment, LiveConfig, RedriveAssignment, ResolvedRoute, WorkerConfig
from deadletter.core import names
from deadletter.plan import common_manifests
from deadletter.plan.common_manifests import ASSIGNMENT_KEY, Manifest, WorkerImage
from deadletter.plan.degraded import worker_pause_reason
from deadletter.plan.facts import QueueFacts
from deadletter.plan.queue_checks import secret_keys
from deadletter.plan.queue_status import consumer_group_status

STANDING_STRATEGIES = ("Automatic", "Selective")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The operator's settings that concern workers."""

    image: WorkerImage
    allow: tuple[str, ...] = ()  # address ranges that workers may connect to although they are not public
    network_policy: bool = False
    pod_monitor: bool = False


def worker_role(queue: DeadLetterQueue) -> str | None:
    """Return the role of the queue's worker, courier or redrive; None if it has no worker."""
    if queue.shape == "Delivered":
        return "courier"
    return "redrive" if queue.spec.redrive.strategy in STANDING_STRATEGIES else None


def worker_secret_names(queue: DeadLetterQueue, connection: BrokerConnection) -> tuple[str, ...]:
    """Return the Secrets that the worker mounts."""
    return secret_names(secret_keys(queue, connection))


def plan_worker(
    queue: DeadLetterQueue, facts: QueueFacts, workers: WorkerSettings, may_redrive: bool = True
) -> list[Manifest]:
    """Return all manifests of the queue's worker. `may_redrive`: no Replay of the queue runs now."""
    role = worker_role(queue)
    if role is None or facts.connection is None:
        return []
    connection = facts.connection
    assignment: WorkerConfig
    if role == "courier":
        assignment = _courier_assignment(queue, facts, connection, workers)
    else:
        assignment = _redrive_assignment(queue, facts, connection, workers)
    live = _live_config(queue, facts, may_redrive)
    return _manifests(queue, connection, role, assignment, live, workers)


def plan_live_config(
    queue: DeadLetterQueue, facts: QueueFacts, config_maps: Sequence[Mapping[str, Any]], may_redrive: bool
) -> list[Manifest]:
    """Return the worker's ConfigMap with the assignment it has now and a new live configuration.

    A queue with a problem keeps its worker and its assignment, but must still be able to pause.
    """
    role = worker_role(queue)
    if role is None:
        return []
    name = names.child_name(queue.name, role)
    data: Mapping[str, str] = next((one["data"] for one in config_maps if one["metadata"]["name"] == name), {})
    if ASSIGNMENT_KEY not in data:
        return []
    labels, live = names.labels(queue.name, role), _live_config(queue, facts, may_redrive)
    return [common_manifests.assignment_config_map(queue, name, labels, data[ASSIGNMENT_KEY], live)]


def _live_config(queue: DeadLetterQueue, facts: QueueFacts, may_redrive: bool) -> LiveConfig:
    return LiveConfig(paused=worker_pause_reason(queue, facts.stats, may_redrive), redaction=queue.spec.redaction)


def _courier_assignment(
    queue: DeadLetterQueue, facts: QueueFacts, connection: BrokerConnection, workers: WorkerSettings
) -> CourierAssignment:
    source, delivery = queue.spec.source, queue.spec.delivery
    if source is None or delivery is None:
        raise ValueError("a courier needs spec.source and spec.delivery")
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
        url=delivery.http.request_url(queue.namespace),
        routes=tuple(ResolvedRoute(match=match, box=target.boxes(redis).dead) for match, target in routes),
        compat_headers=queue.spec.dead.compat_headers,
        allow=workers.allow,
    )


def _redrive_assignment(
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
    queue: DeadLetterQueue,
    connection: BrokerConnection,
    role: str,
    assignment: WorkerConfig,
    live: LiveConfig,
    workers: WorkerSettings,
) -> list[Manifest]:
    name, labels = names.child_name(queue.name, role), names.labels(queue.name, role)
    manifests = [
        common_manifests.assignment_config_map(queue, name, labels, common_manifests.to_json(assignment), live),
        common_manifests.service_account(queue, name, labels),
        _deployment(queue, connection, role, common_manifests.assignment_hash(assignment), workers.image),
    ]
    if workers.network_policy:
        manifests.append(common_manifests.network_policy(queue, name, labels, selector_labels(queue, role)))
    if workers.pod_monitor:
        manifests.append(_pod_monitor(queue, name, labels))
    return manifests


def selector_labels(queue: DeadLetterQueue, role: str) -> dict[str, str]:
    """Return the labels that select the worker's pods. They never change: the selector of a Deployment is immutable."""
    labels = names.labels(queue.name, role)
    return {key: labels[key] for key in ("deadletter.dev/queue", "app.kubernetes.io/component")}


def _deployment(
    queue: DeadLetterQueue, connection: BrokerConnection, role: str, assignment_hash: str, image: WorkerImage
) -> Manifest:
    delivery, labels = queue.spec.delivery, names.labels(queue.name, role)
    name = names.child_name(queue.name, role)
    resources = delivery.resources.to_wire() if delivery and delivery.resources else None
    pod = common_manifests.pod_spec(role, name, name, worker_secret_names(queue, connection), image, resources)
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(queue, role)},
        }
    ]
    annotations = {common_manifests.ASSIGNMENT_HASH_ANNOTATION: assignment_hash}
    spec = {
        "replicas": delivery.replicas if delivery else 1,
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": selector_labels(queue, role)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
    }
    if role == "redrive":
        spec["strategy"] = {"type": "Recreate"}  # a dead box partition has one writer: a second would fence the first
    return common_manifests.child_manifest("Deployment", "apps/v1", queue, name, labels) | {"spec": spec}


def _pod_monitor(queue: DeadLetterQueue, name: str, labels: dict[str, str]) -> Manifest:
    spec = {
        "selector": {"matchLabels": selector_labels(queue, labels["app.kubernetes.io/component"])},
        "podMetricsEndpoints": [{"port": "health", "path": "/metrics"}],
    }
    return common_manifests.child_manifest("PodMonitor", "monitoring.coreos.com/v1", queue, name, labels) | {
        "spec": spec
    }
