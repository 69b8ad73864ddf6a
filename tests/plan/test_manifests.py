"""The manifests of workers and Replays, and the planned topics and streams."""

import json
from dataclasses import replace
from typing import Any

import pytest

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.retry_policies import RetryPolicy
from deadletter.api.worker_config import CourierAssignment, RedriveAssignment, ReplayAssignment
from deadletter.core.heartbeats import WorkerStatus
from deadletter.plan.common_manifests import WorkerImage
from deadletter.plan.desired_boxes import ENVELOPE_BYTES, like_source, owned_boxes, plan_boxes
from deadletter.plan.facts import PodExit, QueueFacts, ReplayFacts
from deadletter.plan.replay_manifests import backoff_limit, build_target, plan_replay
from deadletter.plan.worker_manifests import WorkerSettings, plan_live_config, plan_worker
from tests.plan.builders import (
    NOW,
    box_stats,
    connection,
    delivered_queue,
    metadata,
    partition_progress,
    plain_queue,
    replay,
    routes,
)

WORKERS = WorkerSettings(
    WorkerImage("image:1", pull_secrets=("pull",)), allow=("10.0.0.0/8",), network_policy=True, pod_monitor=True
)
SASL = {"sasl": {"mechanism": "PLAIN", "secretRef": {"name": "kafka.user"}}}
FACTS = QueueFacts(connection=connection(**SASL))


def by_kind(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in manifests}


def config_map_value(manifests: list[dict[str, Any]], key: str = "assignment.json") -> str:
    return str(by_kind(manifests)["ConfigMap"]["data"][key])


def test_a_plain_queue_has_no_worker() -> None:
    assert plan_worker(plain_queue(), FACTS, WORKERS) == []


def test_the_assignment_of_a_courier_is_complete() -> None:
    policy = RetryPolicy.from_body({"metadata": metadata("slow"), "spec": {"maxAttempts": 9}})
    queue = delivered_queue(routes=routes("invalid"))
    facts = QueueFacts(connection=connection(**SASL), policy=policy, queues={"invalid": plain_queue("invalid")})
    made = CourierAssignment.model_validate_json(config_map_value(plan_worker(queue, facts, WORKERS)))
    assert made.url == "http://billing.shop.svc:8080/orders"
    assert made.policy.max_attempts == 9
    assert [(route.match, route.box) for route in made.routes] == [("attempts > 3", "invalid.dead")]
    assert made.boxes.model_dump() == {
        "source": "orders",
        "retry": "orders.billing.dlq.retry",
        "dead": "orders.billing.dlq",
        "ledger": "orders.billing.dlq.ledger",
    }
    assert made.allow == ("10.0.0.0/8",)


def test_pods_satisfy_the_restricted_security_standard() -> None:
    children = by_kind(plan_worker(delivered_queue(), FACTS, WORKERS))
    assert set(children) == {"ConfigMap", "ServiceAccount", "Deployment", "NetworkPolicy", "PodMonitor"}
    pod = children["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["args"] == ["courier"]
    assert "/secrets/kafka.user" in [one["mountPath"] for one in container["volumeMounts"]]
    for child in children.values():
        assert child["metadata"]["ownerReferences"][0]["controller"] is True
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "dlq-operator"


def digest(queue: Any, facts: QueueFacts = FACTS) -> str:
    template = by_kind(plan_worker(queue, facts, WORKERS))["Deployment"]["spec"]["template"]
    return str(template["metadata"]["annotations"]["deadletter.dev/assignment"])


@pytest.mark.parametrize(
    ("change", "is_replaced"),
    [
        ({"suspend": True}, False),
        ({"alerts": {"depth": 1}}, False),
        ({"capacity": {"maxLetters": 9}}, False),
        ({"redaction": {"headers": ["cookie"]}}, False),
        ({"dead": {"name": "elsewhere"}}, True),
        ({"dead": {"compatHeaders": ["Spring"]}}, True),
    ],
)
def test_pods_are_replaced_only_for_fields_of_the_assignment(change: dict[str, Any], is_replaced: bool) -> None:
    assert (digest(delivered_queue(**change)) != digest(delivered_queue())) is is_replaced


STARTED = {"consumerGroup": {"name": "billing", "source": "orders", "startedTime": "2026-11-16T00:00:00Z"}}
WITH_HEARTBEAT = QueueFacts(connection=connection(**SASL), stats=box_stats(couriers=(WorkerStatus("pod-0"),)), now=NOW)


@pytest.mark.parametrize(
    ("queue", "facts", "has_started"),
    [
        (delivered_queue(), FACTS, False),
        (delivered_queue(), WITH_HEARTBEAT, True),
        (delivered_queue(status=STARTED), FACTS, True),
        (delivered_queue(status={"consumerGroup": STARTED["consumerGroup"] | {"name": "another"}}), FACTS, False),
    ],
)
def test_group_started_is_in_the_assignment_and_replaces_no_pod(
    queue: DeadLetterQueue, facts: QueueFacts, has_started: bool
) -> None:
    made = CourierAssignment.model_validate_json(config_map_value(plan_worker(queue, facts, WORKERS)))
    assert made.group_started is has_started
    assert digest(queue, facts) == digest(delivered_queue())


def test_scaling_replaces_no_pod() -> None:
    http = {"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}}
    assert digest(delivered_queue(delivery={"http": http, "replicas": 7})) == digest(delivered_queue())


def test_a_full_queue_is_paused_by_live_json() -> None:
    facts = QueueFacts(connection=connection(), stats=box_stats(9))
    queue = delivered_queue(capacity={"maxLetters": 9})
    assert json.loads(config_map_value(plan_worker(queue, facts, WORKERS), "live.json"))["paused"] == "CapacityReached"


def test_redaction_is_in_live_json() -> None:
    hides = {"redaction": {"headers": ["cookie"], "jsonPointers": ["/card"]}}
    courier, redriven = delivered_queue(**hides), plain_queue(redrive={"strategy": "Automatic"}, **hides)
    started = ReplayFacts(queue=courier, connection=connection(), assignment="{}")  # the assignment it was started with
    config = plan_live_config(courier, FACTS, plan_worker(delivered_queue(), FACTS, WORKERS)[:1], may_redrive=True)
    made = [plan_worker(courier, FACTS, WORKERS), plan_worker(redriven, FACTS, WORKERS), config]
    for children in (*made, plan_replay(replay(), started, WORKERS, suspend=False)):
        assert json.loads(config_map_value(children, "live.json"))["redaction"] == {
            "headers": ["cookie"],
            "json_pointers": ["/card"],
        }
    assert "redaction" not in json.loads(config_map_value(plan_worker(delivered_queue(), FACTS, WORKERS), "live.json"))


def test_a_queue_without_its_policy_can_still_be_paused() -> None:
    queue = delivered_queue(retryPolicyRef={"name": "gone"}, suspend=True)
    before = [one for one in plan_worker(delivered_queue(), FACTS, WORKERS) if one["kind"] == "ConfigMap"]
    (config,) = plan_live_config(queue, FACTS, before, may_redrive=True)
    assert json.loads(config["data"]["live.json"])["paused"] == "Suspended"
    assert config["data"]["assignment.json"] == config_map_value(before)
    assert plan_live_config(queue, FACTS, [], may_redrive=True) == []
    assert plan_live_config(plain_queue(), FACTS, before, may_redrive=True) == []


def test_a_standing_redrive_is_paused_while_a_replay_runs() -> None:
    queue = plain_queue(redrive={"strategy": "Selective", "where": "attempts < 9"})
    children = plan_worker(queue, FACTS, WORKERS, may_redrive=False)
    assert RedriveAssignment.model_validate_json(config_map_value(children)).where == "attempts < 9"
    assert json.loads(config_map_value(children, "live.json"))["paused"] == "Queued"
    assert by_kind(children)["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_planned_boxes() -> None:
    dead, retry = plan_boxes(delivered_queue(), connection(defaults={"partitions": 6, "replicationFactor": 3}).spec)
    assert (dead.partitions, dead.replication_factor, dead.retention_ms) == (6, 3, 720 * 3_600_000)
    by_age_only = {"cleanup.policy": "delete", "retention.bytes": "-1"}
    assert dead.config == by_age_only | {"message.timestamp.type": "LogAppendTime"}
    assert retry.config == dead.config
    assert [box.config for box in plan_boxes(delivered_queue(), connection(redis=True).spec)] == [{}, {}]
    assert (retry.name, retry.is_retry_box, retry.retention_ms) == ("orders.billing.dlq.retry", True, -1)
    (adopted,) = plan_boxes(plain_queue(dead={"name": "x", "adopt": True}), connection().spec)
    assert adopted.adopt
    assert owned_boxes(plain_queue(dead={"name": "x", "adopt": True}), redis=False) == ()
    assert owned_boxes(plain_queue(), redis=False) == ("orders.dead", "orders.dead.ledger")


def test_boxes_take_the_messages_of_their_source_with_an_envelope() -> None:
    dead, retry = plan_boxes(delivered_queue(), connection().spec)
    for box in (dead, retry):
        created = like_source(box, 12, 1_000_000, exists=False)
        assert (created.partitions, created.min_message_bytes) == (12, 1_000_000 + ENVELOPE_BYTES)
        existing = like_source(box, 12, 1_000_000, exists=True)
        assert (existing.partitions, existing.min_message_bytes) == (None, 1_000_000 + ENVELOPE_BYTES)
        assert like_source(box, 12, 2**31 - 1, exists=True).min_message_bytes == 2**31 - 1
        assert like_source(box, 1, None, exists=True).min_message_bytes is None  # Redis, or no right to read configs
    chosen = replace(dead, partitions=3, config={"max.message.bytes": "1000"})
    assert like_source(chosen, 12, 1_000_000, exists=False) == chosen


def test_a_replay_is_one_job_of_one_pod() -> None:
    facts = ReplayFacts(queue=delivered_queue(), connection=connection(**SASL))
    subject = replay(rate={"perSecond": 5}, activeDeadline="1h")
    children = by_kind(plan_replay(subject, facts, WORKERS, suspend=True))
    spec = children["Job"]["spec"]
    assert (spec["suspend"], spec["parallelism"], spec["activeDeadlineSeconds"]) == (True, 1, 3600)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    made = ReplayAssignment.model_validate_json(children["ConfigMap"]["data"]["assignment.json"])
    assert (made.target.kind, made.target.box) == ("Retry", "orders.billing.dlq.retry")
    assert made.spec.rate is None
    assert json.loads(children["ConfigMap"]["data"]["live.json"])["rate"]["per_second"] == 5


def test_the_network_policy_of_a_replay_admits_only_probes_and_metrics() -> None:
    facts = ReplayFacts(queue=delivered_queue(), connection=connection())
    children = by_kind(plan_replay(replay(), facts, WORKERS, suspend=False))
    policy, pod = children["NetworkPolicy"]["spec"], children["Job"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["podSelector"]["matchLabels"]["deadletter.dev/replay"] == replay().name
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [one["name"] for one in pod["spec"]["containers"][0]["ports"]]
    without_policy = plan_replay(replay(), facts, replace(WORKERS, network_policy=False), suspend=False)
    assert "NetworkPolicy" not in by_kind(without_policy)


def limit(failed: int, current: int, *exits: int, changed: int | None = NOW) -> int:
    """Return the new backoffLimit of a Job with `failed` pods and the limit `current`; `exits` are times after NOW."""
    facts = ReplayFacts(
        job={"spec": {"backoffLimit": current}, "status": {"failed": failed}},
        pod_exits=tuple(PodExit(NOW + at, 137) for at in exits),
        progress=() if changed is None else (partition_progress(updated_at=changed),),
    )
    return backoff_limit(facts)


def test_pods_that_made_progress_do_not_count() -> None:
    assert backoff_limit(ReplayFacts()) == 12
    assert limit(3, 12, -3, -2, -1) == 15
    assert limit(3, 12, -1, 1, 2) == 13
    assert limit(12, 12, *range(1, 13)) == 12


def test_the_backoff_limit_is_never_lowered() -> None:
    assert limit(20, 30, *range(20), changed=None) == 30
    assert limit(20, 30, *range(1, 21)) == 30


def test_the_pod_template_of_an_existing_job_stays() -> None:
    facts = ReplayFacts(queue=delivered_queue(), connection=connection())
    job = by_kind(plan_replay(replay(), facts, WORKERS, suspend=False))["Job"]
    newer = replace(WORKERS, image=WorkerImage("image:2"))
    running = replace(facts, job=job | {"status": {}})
    held = by_kind(plan_replay(replay(), running, newer, suspend=True))["Job"]
    assert held["spec"] == job["spec"] | {"suspend": True}


@pytest.mark.parametrize(
    ("to", "kind", "box"),
    [
        (None, "Origin", None),
        ({"origin": True}, "Origin", None),
        ({"name": "back"}, "Box", "back"),
        ({"serviceRef": {"name": "billing"}}, "Service", None),
        ({"queueRef": {"name": "other"}}, "Queue", "orders"),
    ],
)
def test_the_target_follows_spec_to(to: dict[str, Any] | None, kind: str, box: str | None) -> None:
    facts = ReplayFacts(target=delivered_queue("other"), target_connection=connection())
    made = build_target(replay(**({"to": to} if to else {})), facts, plain_queue(), connection())
    assert (made.kind, made.box) == (kind, box)


def test_the_dead_boxes_of_the_target_are_watched() -> None:
    other = delivered_queue("other", source={"name": "bills", "group": "shop"})
    facts, invalid = ReplayFacts(target=other, target_connection=connection()), ("invalid",)
    made = lambda facts, **to: build_target(replay(**to), facts, delivered_queue(), connection()).watched  # noqa: E731
    assert made(facts, to={"queueRef": {"name": "other"}}) == ("bills.shop.dlq",)
    assert made(replace(facts, route_boxes=invalid), to={"queueRef": {"name": "other"}}) == (
        "bills.shop.dlq",
        "invalid",
    )
    assert made(ReplayFacts()) == ()
    assert made(ReplayFacts(route_boxes=invalid)) == ("orders.billing.dlq", "invalid")
    assert made(ReplayFacts(route_boxes=invalid), to={"origin": True}) == ("orders.billing.dlq", "invalid")
