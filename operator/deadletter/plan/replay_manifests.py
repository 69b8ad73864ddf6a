"""Build the manifests of a Replay: a ConfigMap, a ServiceAccount without a token, and one Job of one pod."""

from typing import Any, Literal

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.delivery import HttpDelivery, ServiceRef
from deadletter.api.replays import Replay
from deadletter.api.worker_config import LiveConfig, ReplayAssignment, ReplayTarget
from deadletter.core import names
from deadletter.plan import common_manifests
from deadletter.plan.common_manifests import Manifest
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.replay_outcome import job_name
from deadletter.plan.worker_manifests import WorkerSettings, worker_secret_names

# Exit codes 3 (failed) and 5 (needs a decision): another pod would end in the same way. A fenced pod (4) is replaced,
# and the new pod continues from the ledger.
FAIL_JOB_CODES = [3, 5]
IGNORE_CODES = [143]  # the pod was deleted: it has committed its batch, and another pod continues
# Pods in a row that may fail without progress. The Job controller waits up to 10 minutes between pods: about an hour.
MAX_FAILED_PODS = 12
IMMUTABLE_JOB_FIELDS = ("podFailurePolicy", "template")


def plan_replay(replay: Replay, facts: ReplayFacts, workers: WorkerSettings, suspend: bool) -> list[Manifest]:
    """Return all manifests of a Replay. `suspend`: the Job is created or updated without a running pod."""
    queue, connection = facts.queue, facts.connection
    if queue is None or connection is None:
        return []
    name, labels = job_name(replay), replay_labels(replay)
    # The assignment is fixed when the Replay starts: later changes of its preview or its target have no effect.
    assignment = facts.assignment or common_manifests.to_json(
        build_assignment(replay, facts, queue, connection, workers)
    )
    live = LiveConfig(rate=replay.spec.rate, redaction=queue.spec.redaction)
    selected = {key: labels[key] for key in ("deadletter.dev/replay", "app.kubernetes.io/component")}
    return [
        common_manifests.assignment_config_map(replay, name, labels, assignment, live),
        common_manifests.service_account(replay, name, labels),
        *([common_manifests.network_policy(replay, name, labels, selected)] if workers.network_policy else []),
        _job(replay, facts, _secret_names(queue, connection, facts), workers, suspend),
    ]


def replay_labels(replay: Replay) -> dict[str, str]:
    """Return the labels of the children: those of the queue, and the name of the Replay."""
    replay_label = {"deadletter.dev/replay": names.shorten_name(replay.name)}
    return names.labels(replay.spec.queue_ref.name, "replay") | replay_label


def build_assignment(
    replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection, workers: WorkerSettings
) -> ReplayAssignment:
    """Return the assignment of the Replay's worker, without the fields that may change while it runs."""
    spec = replay.spec.model_copy(update={"suspend": False, "rate": None, "ttl_seconds_after_finished": None})
    dead = queue.spec.dead
    return ReplayAssignment(
        namespace=replay.namespace,
        name=replay.name,
        uid=replay.uid,
        queue=queue.name,
        broker=connection.spec,
        boxes=queue.boxes(connection.spec.is_redis),
        dialect=dead.dialect,
        read_values=dead.read_values,
        origin=dead.origin,
        spec=spec,
        target=build_target(replay, facts, queue, connection),
        preview_uid=facts.preview.uid if facts.preview else None,
        observe=queue.spec.redrive.strategy == "Disabled",
        http=_delivery_of(replay.spec.to.service_ref, queue) if replay.spec.to and replay.spec.to.service_ref else None,
        allow=workers.allow,
    )


def build_target(
    replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection
) -> ReplayTarget:
    """Return where the letters go: to `spec.to`; unset, to the queue's retry box or else to each letter's origin."""
    to, boxes = replay.spec.to, queue.boxes(connection.spec.is_redis)
    watched = (boxes.dead, *facts.route_boxes) if facts.route_boxes else ()
    if to is None:
        kind: Literal["Retry", "Origin"] = "Retry" if boxes.retry else "Origin"
        return ReplayTarget(kind=kind, box=boxes.retry, watched=watched)
    if to.name is not None:
        return ReplayTarget(kind="Box", box=to.name, watched=watched)
    if to.service_ref is not None:
        return ReplayTarget(kind="Service", url=_service_url(to.service_ref, replay.namespace, queue))
    if to.queue_ref is not None and facts.target and facts.target.spec.source and facts.target_connection:
        is_other_broker = facts.target_connection.name != connection.name
        broker = facts.target_connection.spec if is_other_broker else None
        dead = facts.target.boxes(facts.target_connection.spec.is_redis).dead
        source = facts.target.spec.source.name
        return ReplayTarget(kind="Queue", box=source, broker=broker, watched=(dead, *facts.route_boxes))
    return ReplayTarget(kind="Origin", watched=watched)


def _delivery_of(service: ServiceRef, queue: DeadLetterQueue) -> HttpDelivery | None:
    """Return how the queue delivers to this Service, if it does: headers, success statuses and TLS are the same."""
    delivery = queue.spec.delivery
    if delivery is None or delivery.http.service_ref is None or delivery.http.service_ref.name != service.name:
        return None
    return delivery.http


def _service_url(service: ServiceRef, namespace: str, queue: DeadLetterQueue) -> str:
    """Return the URL of the Service; https if the queue delivers to the same port of it by TLS."""
    http = _delivery_of(service, queue)
    same_port = http is not None and http.service_ref is not None and http.service_ref.port == service.port
    return service.url(namespace, tls=http is not None and same_port and http.tls is not None)


def _secret_names(queue: DeadLetterQueue, connection: BrokerConnection, facts: ReplayFacts) -> tuple[str, ...]:
    target_secrets = facts.target_connection.spec.secret_names if facts.target_connection else ()
    return tuple(dict.fromkeys([*worker_secret_names(queue, connection), *target_secrets]))


def backoff_limit(facts: ReplayFacts) -> int:
    """Return how many pods of the Job may fail: MAX_FAILED_PODS more than before the last progress; never lowered."""
    job = facts.job or {}
    current: int = (job.get("spec") or {}).get("backoffLimit", MAX_FAILED_PODS)
    failed_before = ((job.get("status") or {}).get("failed") or 0) - facts.failed_pods
    return max(current, failed_before + MAX_FAILED_PODS) if facts.progress else current


def _job(
    replay: Replay, facts: ReplayFacts, secrets: tuple[str, ...], workers: WorkerSettings, suspend: bool
) -> Manifest:
    name, labels = job_name(replay), replay_labels(replay)
    pod = common_manifests.pod_spec("replay", name, name, secrets, workers.image) | {"restartPolicy": "Never"}
    spec: dict[str, Any] = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": backoff_limit(facts),
        "suspend": suspend,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": _exit_codes(FAIL_JOB_CODES)},
                {"action": "Ignore", "onExitCodes": _exit_codes(IGNORE_CODES)},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if replay.spec.active_deadline_ms is not None:
        spec["activeDeadlineSeconds"] = max(1, replay.spec.active_deadline_ms // 1000)
    if facts.job is not None:
        spec |= {field: facts.job["spec"][field] for field in IMMUTABLE_JOB_FIELDS}
    return common_manifests.child_manifest("Job", "batch/v1", replay, name, labels) | {"spec": spec}


def _exit_codes(codes: list[int]) -> dict[str, Any]:
    return {"containerName": "replay", "operator": "In", "values": codes}
