"""The children of a Replay: a ConfigMap, a ServiceAccount without a token, and one Job of one pod."""

from typing import Any, Literal

from deadletter.api.assignments import LiveConfig, ReplayAssignment, ReplayTarget
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.pod_template import Manifest
from deadletter.plan.worker_manifests import WorkerSettings, worker_secret_names

# 3: ended badly, 5: a human decides. Another pod would find the same; one that was fenced (4) goes on from the ledger.
FAIL_JOB_CODES = [3, 5]
IGNORE_CODES = [143]  # its pod was deleted: the step is done and another goes on
MAX_FAILED_PODS = 12  # pods that may end one after the other without a step forward: an hour, as the Job waits up to 10 min
IMMUTABLE_JOB_FIELDS = ("podFailurePolicy", "template")  # nobody may change them in a Job that exists


def plan_replay(replay: Replay, facts: ReplayFacts, workers: WorkerSettings, suspend: bool) -> list[Manifest]:
    """Everything the replayer needs. `hold`: it waits, by the Job's own suspend."""
    queue, connection = facts.queue, facts.connection
    if queue is None or connection is None:
        return []
    name, labels = names.child_name(replay.name, "replay"), replay_labels(replay)
    # What it is told is fixed when it begins: a preview or a target that goes away since then changes nothing.
    assignment = facts.assignment or pod_template.to_json(build_assignment(replay, facts, queue, connection, workers))
    live = LiveConfig(rate=replay.spec.rate, redaction=queue.spec.redaction)
    only = {key: labels[key] for key in ("deadletter.dev/replay", "app.kubernetes.io/component")}
    return [
        pod_template.assignment_config_map(replay, name, labels, assignment, live),
        pod_template.service_account(replay, name, labels),
        *([pod_template.network_policy(replay, name, labels, only)] if workers.network_policy else []),
        _job(replay, facts, _secrets(queue, connection, facts), workers, suspend),
    ]


def replay_labels(replay: Replay) -> dict[str, str]:
    """Labels of its children: the queue's, and its own name."""
    return names.labels(replay.spec.queue_ref.name, "replay") | {"deadletter.dev/replay": names.shorten_name(replay.name)}


def build_assignment(
    replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection, workers: WorkerSettings
) -> ReplayAssignment:
    """What the replayer is told; what may change while it runs is not in it."""
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
        http=_http(replay, queue),
        allow=workers.allow,
    )


def build_target(replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection) -> ReplayTarget:
    """Where the letters go: as asked, else the queue's own retry box, else each letter's origin."""
    to, boxes = replay.spec.to, queue.boxes(connection.spec.is_redis)
    watched = (boxes.dead, *facts.route_boxes) if facts.route_boxes else ()
    if to is None:
        kind: Literal["Retry", "Origin"] = "Retry" if boxes.retry else "Origin"
        return ReplayTarget(kind=kind, box=boxes.retry, watched=watched)
    if to.name is not None:
        return ReplayTarget(kind="Box", box=to.name, watched=watched)
    if to.service_ref is not None:
        return ReplayTarget(kind="Service", url=to.service_ref.url(replay.namespace))
    if to.queue_ref is not None and facts.target and facts.target.spec.source and facts.target_connection:
        elsewhere = facts.target_connection.name != connection.name
        broker = facts.target_connection.spec if elsewhere else None
        dead = facts.target.boxes(facts.target_connection.spec.is_redis).dead
        return ReplayTarget(kind="Queue", box=facts.target.spec.source.name, broker=broker, watched=(dead, *facts.route_boxes))
    return ReplayTarget(kind="Origin", watched=watched)


def _http(replay: Replay, queue: DeadLetterQueue) -> Any:
    """A Service that the queue delivers to anyway is called in the same way."""
    to, delivery = replay.spec.to, queue.spec.delivery
    if to is None or to.service_ref is None or delivery is None or delivery.http.service_ref is None:
        return None
    return delivery.http if delivery.http.service_ref.name == to.service_ref.name else None


def _secrets(queue: DeadLetterQueue, connection: BrokerConnection, facts: ReplayFacts) -> tuple[str, ...]:
    other = facts.target_connection.spec.secret_names if facts.target_connection else ()
    return tuple(dict.fromkeys([*worker_secret_names(queue, connection), *other]))


def backoff_limit(facts: ReplayFacts) -> int:
    """How many pods may fail: those before the last step forward, which lost nothing, and a few more."""
    job = facts.job or {}
    now: int = (job.get("spec") or {}).get("backoffLimit", MAX_FAILED_PODS)
    before = ((job.get("status") or {}).get("failed") or 0) - facts.failed_pods
    return max(now, before + MAX_FAILED_PODS) if facts.progress else now


def _job(replay: Replay, facts: ReplayFacts, secrets: tuple[str, ...], workers: WorkerSettings, hold: bool) -> Manifest:
    name, labels = names.child_name(replay.name, "replay"), replay_labels(replay)
    pod = pod_template.pod_spec("replay", name, name, secrets, workers.image) | {"restartPolicy": "Never"}
    spec: dict[str, Any] = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": backoff_limit(facts),
        "suspend": hold,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"containerName": "replay", "operator": "In", "values": FAIL_JOB_CODES}},
                {"action": "Ignore", "onExitCodes": {"containerName": "replay", "operator": "In", "values": IGNORE_CODES}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if replay.spec.active_deadline_ms is not None:
        spec["activeDeadlineSeconds"] = max(1, replay.spec.active_deadline_ms // 1000)
    if facts.job is not None:
        spec |= {name: facts.job["spec"][name] for name in IMMUTABLE_JOB_FIELDS}
    return pod_template.child_manifest("Job", "batch/v1", replay, name, labels) | {"spec": spec}
