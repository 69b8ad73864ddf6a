"""The children of a Replay: a ConfigMap, a ServiceAccount without a token, and one Job of one pod."""

from typing import Any, Literal

from deadletter.api.assignments import Live, ReplayAssignment, Target
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.pod_template import Manifest
from deadletter.plan.worker_manifests import Workers, secrets_of

# 3: ended badly, 5: a human decides. Another pod would find the same; one that was fenced (4) goes on from the ledger.
NO_USE = [3, 5]
ASKED = [143]  # its pod was deleted: the step is done and another goes on
STUMBLES = 12  # pods that may end one after the other without a step forward: an hour, as the Job waits up to 10 min
FIXED = ("podFailurePolicy", "template")  # nobody may change them in a Job that exists


def plan_replay(replay: Replay, facts: ReplayFacts, workers: Workers, hold: bool) -> list[Manifest]:
    """Everything the replayer needs. `hold`: it waits, by the Job's own suspend."""
    queue, connection = facts.queue, facts.connection
    if queue is None or connection is None:
        return []
    name, labels = names.child(replay.name, "replay"), labels_of(replay)
    # What it is told is fixed when it begins: a preview or a target that goes away since then changes nothing.
    assignment = facts.told or pod_template.written(assign(replay, facts, queue, connection, workers))
    live = Live(rate=replay.spec.rate, redaction=queue.spec.redaction)
    only = {key: labels[key] for key in ("deadletter.dev/replay", "app.kubernetes.io/component")}
    return [
        pod_template.told(replay, name, labels, assignment, live),
        pod_template.account(replay, name, labels),
        *([pod_template.network_policy(replay, name, labels, only)] if workers.network_policy else []),
        _job(replay, facts, _secrets(queue, connection, facts), workers, hold),
    ]


def labels_of(replay: Replay) -> dict[str, str]:
    """Labels of its children: the queue's, and its own name."""
    return names.labels(replay.spec.queue_ref.name, "replay") | {"deadletter.dev/replay": names.cut(replay.name)}


def assign(
    replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection, workers: Workers
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
        target=target(replay, facts, queue, connection),
        preview_uid=facts.preview.uid if facts.preview else None,
        observe=queue.spec.redrive.strategy == "Disabled",
        http=_http(replay, queue),
        allow=workers.allow,
    )


def target(replay: Replay, facts: ReplayFacts, queue: DeadLetterQueue, connection: BrokerConnection) -> Target:
    """Where the letters go: as asked, else the queue's own retry box, else each letter's origin."""
    to, boxes = replay.spec.to, queue.boxes(connection.spec.is_redis)
    watched = (boxes.dead, *facts.routed) if facts.routed else ()
    if to is None:
        kind: Literal["Retry", "Origin"] = "Retry" if boxes.retry else "Origin"
        return Target(kind=kind, box=boxes.retry, watched=watched)
    if to.name is not None:
        return Target(kind="Box", box=to.name, watched=watched)
    if to.service_ref is not None:
        return Target(kind="Service", url=to.service_ref.url(replay.namespace))
    if to.queue_ref is not None and facts.target and facts.target.spec.source and facts.target_connection:
        elsewhere = facts.target_connection.name != connection.name
        broker = facts.target_connection.spec if elsewhere else None
        dead = facts.target.boxes(facts.target_connection.spec.is_redis).dead
        return Target(kind="Queue", box=facts.target.spec.source.name, broker=broker, watched=(dead, *facts.routed))
    return Target(kind="Origin", watched=watched)


def _http(replay: Replay, queue: DeadLetterQueue) -> Any:
    """A Service that the queue delivers to anyway is called in the same way."""
    to, delivery = replay.spec.to, queue.spec.delivery
    if to is None or to.service_ref is None or delivery is None or delivery.http.service_ref is None:
        return None
    return delivery.http if delivery.http.service_ref.name == to.service_ref.name else None


def _secrets(queue: DeadLetterQueue, connection: BrokerConnection, facts: ReplayFacts) -> tuple[str, ...]:
    other = facts.target_connection.spec.secret_names if facts.target_connection else ()
    return tuple(dict.fromkeys([*secrets_of(queue, connection), *other]))


def patience(facts: ReplayFacts) -> int:
    """How many pods may fail: those before the last step forward, which lost nothing, and a few more."""
    job = facts.job or {}
    now: int = (job.get("spec") or {}).get("backoffLimit", STUMBLES)
    before = ((job.get("status") or {}).get("failed") or 0) - facts.stumbles
    return max(now, before + STUMBLES) if facts.tallies else now


def _job(replay: Replay, facts: ReplayFacts, secrets: tuple[str, ...], workers: Workers, hold: bool) -> Manifest:
    name, labels = names.child(replay.name, "replay"), labels_of(replay)
    pod = pod_template.pod("replay", name, name, secrets, workers.image) | {"restartPolicy": "Never"}
    spec: dict[str, Any] = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": patience(facts),
        "suspend": hold,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"containerName": "replay", "operator": "In", "values": NO_USE}},
                {"action": "Ignore", "onExitCodes": {"containerName": "replay", "operator": "In", "values": ASKED}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if replay.spec.active_deadline_ms is not None:
        spec["activeDeadlineSeconds"] = max(1, replay.spec.active_deadline_ms // 1000)
    if facts.job is not None:
        spec |= {name: facts.job["spec"][name] for name in FIXED}
    return pod_template.owned("Job", "batch/v1", replay, name, labels) | {"spec": spec}
