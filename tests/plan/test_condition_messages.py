"""A condition that is not as expected has a message that says what is wrong and names the field or the object."""

import json
import re
from typing import Any

import pytest

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.reconcile.status import ready_status
from deadletter.core import replay_progress
from deadletter.core.condition_types import BOXES_READY, COURIER_AVAILABLE, EXPECTED_STATUS, MEANINGS
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import condition
from deadletter.plan.facts import ParkedLetterLoss, PodExit, QueueFacts, ReplayFacts
from deadletter.plan.findings import Finding, all_findings, first_finding
from deadletter.plan.managed_boxes import boxes_to_delete, conflict_finding, judge_ownership
from deadletter.plan.queue_checks import LOOKUP_CHECKS, OBJECT_CHECKS, fields_are_supported, rules_compile
from deadletter.plan.queue_status import queue_status, replica_failure_message
from deadletter.plan.replay_checks import REPLAY_CHECKS
from deadletter.plan.replay_status import replay_status
from tests.bed import places
from tests.plan import test_queue_checks, test_replay_status
from tests.plan.builders import (
    NOW,
    box_stats,
    connection,
    delivered_queue,
    metadata,
    partition_progress,
    plain_queue,
    replay,
    replay_facts,
)

HOUR_MS = 3_600_000
# A field; an object with its name; or a topic or stream of the sample queues.
NAMES = re.compile(
    r"\b(spec|status)\.\w+|\b(DeadLetterQueue|BrokerConnection|RetryPolicy|Replay|Secret|Service|Deployment|Job|Pod) "
    r"[a-z]|\borders\.|retry box"
)
FINISH_REASONS = {reason.value for some in replay_progress.FINISH_REASONS.values() for reason in some}
EXPLAINED = {"Suspended", "DryRunFinished", "NothingMatched", *FINISH_REASONS}  # as expected, with a message
UNREACHABLE = Finding(Reason.BrokerUnreachable, "BrokerConnection broker: k:9092 does not answer.", True, BOXES_READY)
NO_OFFSETS = Finding(
    Reason.GroupOffsetsLost, "Set spec.source.startFrom, then annotate the queue.", True, COURIER_AVAILABLE
)


def findings_of_queues() -> list[tuple[DeadLetterQueue, QueueFacts, Finding]]:
    """Every problem that a check of a queue can report."""
    found = []
    pinned = {"name": "orders.dead", "adopt": True}
    more = [
        (plain_queue(dead={"name": "{orders}"}), QueueFacts(connection=connection())),
        (plain_queue(routes=[{"match": "1", "queueRef": {"name": "b"}}]), QueueFacts(connection=connection())),
        *(
            (plain_queue(dead=pinned | {"dialect": dialect}, redrive={"strategy": "Automatic"}), QueueFacts())
            for dialect in ("arroyo", "watermill")
        ),
    ]
    for queue, facts in [*(row[:2] for row in test_queue_checks.PROBLEMS), *more]:
        problems = all_findings(OBJECT_CHECKS, queue, facts)
        if facts.connection is not None and (facts.secrets or facts.services):
            problems += all_findings(LOOKUP_CHECKS, queue, facts)
        found += [(queue, facts, problem) for problem in problems]
    owner, ids = plain_queue(), {"orders.dead": "id-1", "orders.dead.ledger": "id-2"}
    found.append((owner, QueueFacts(), conflict_finding(owner, False, judge_ownership(owner, False, ids))))
    upgraded = owner.model_copy(update={"status": type(owner.status)(depth=1)})
    blocked = boxes_to_delete(upgraded, judge_ownership(upgraded, False, ids), ids)
    assert isinstance(blocked, Finding)
    return [
        *found,
        (owner, QueueFacts(), blocked),
        (owner, QueueFacts(), UNREACHABLE),
        (owner, QueueFacts(), NO_OFFSETS),
    ]


def degraded_queues() -> list[tuple[DeadLetterQueue, QueueFacts]]:
    """Queues with each problem that Degraded reports."""
    loss = ParkedLetterLoss(3, NOW - HOUR_MS)
    lacks = "orders.dead.ledger has 1 of 3 replicas, and the broker refuses to raise it"
    adopted = plain_queue(dead={"name": "orders.dead", "adopt": True})
    old = box_stats(1, NOW - 23 * HOUR_MS)
    workers = [
        WorkerStatus("orders-0", paused=reason)
        for reason in Reason
        if reason not in (Reason.Suspended, Reason.AsExpected)
    ]
    workers.append(WorkerStatus("orders-0", circuit="Open"))
    workers.append(WorkerStatus("orders-0", deleted=7, deleted_at=NOW))
    return [
        *((delivered_queue(), QueueFacts(stats=box_stats(0, couriers=(worker,)), now=NOW)) for worker in workers),
        (plain_queue(capacity={"maxLetters": 1}), QueueFacts(stats=box_stats(1, NOW), now=NOW)),
        (plain_queue(alerts={"depth": 1}), QueueFacts(stats=box_stats(2, NOW), now=NOW)),
        (plain_queue(alerts={"age": "1h"}), QueueFacts(stats=old, now=NOW)),
        (delivered_queue(), QueueFacts(stats=box_stats(0), loss=loss, now=NOW)),
        (plain_queue(), QueueFacts(stats=box_stats(0), ledger_problem=lacks, now=NOW)),
        *((queue, QueueFacts(stats=old, retention_ms=24 * HOUR_MS, now=NOW)) for queue in (plain_queue(), adopted)),
    ]


def replays() -> list[tuple[Replay, ReplayFacts]]:
    """Replays in each state that the status can report."""
    failed_job = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}}
    late_job = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}}
    new_failure = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-11-16T00:00:00Z"}
    killed = PodExit(NOW, 137, "OOMKilled")
    reported = PodExit(NOW, 5, "Error", json.dumps({"reason": "BoxRecreated"}))
    phases = [partition_progress(phase=phase) for phase in ("Freezing", "Running", "Waiting", "Verifying")]
    failures = [partition_progress(phase="Failed", reason=reason) for reason in Reason]
    more = [
        *(replay_facts(progress=(partition,)) for partition in (*phases, *failures)),
        replay_facts(job=failed_job),
        replay_facts(job=failed_job, pod_exits=(killed,)),
        replay_facts(job=failed_job, pod_exits=(reported,)),
        replay_facts(job=late_job),
        replay_facts(job={"status": {"conditions": [new_failure]}}, pod_exits=(killed,), now=NOW),
        replay_facts(job={}, pod_exits=(killed,), progress=(partition_progress(updated_at=NOW),)),
        replay_facts(job={}, pod_problem="Pod again-replay-x waits: ImagePullBackOff: no such image"),
    ]
    cases = [(subject, facts) for subject, facts, _ in test_replay_status.CASES]
    return cases + [(replay(activeDeadline="5m"), facts) for facts in more]


def statuses() -> list[dict[str, Any]]:
    policy = RetryPolicy.from_body(
        {"metadata": metadata("slow"), "spec": {"rules": [{"name": "a", "match": "1", "action": "Bury"}]}}
    )
    redis = {"url": "redis://r:6379/0", "mode": "Cluster"}
    broker = type(connection()).from_body({"metadata": metadata("broker"), "spec": {"redis": redis}})
    waiting = [
        QueueFacts(connection=connection(), deployment={"status": {}}),
        QueueFacts(connection=connection(), pod_problem=replica_failure_message(QUOTA)),
    ]
    return [
        *(queue_status(queue, facts, found) for queue, facts, found in findings_of_queues()),
        *(queue_status(delivered_queue(), facts, found) for _, facts, found in findings_of_queues()),
        *(queue_status(queue, facts, None) for queue, facts in degraded_queues()),
        *(queue_status(delivered_queue(suspend=True), facts, None) for facts in waiting),
        *(replay_status(subject, facts, first_finding(REPLAY_CHECKS, subject, facts)) for subject, facts in replays()),
        ready_status(policy, rules_compile(policy), 1),
        ready_status(broker, fields_are_supported(broker), 1),
    ]


QUOTA = {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}]}}


@pytest.mark.parametrize("status", statuses())
def test_a_condition_that_is_not_as_expected_names_the_field_or_the_object(status: dict[str, Any]) -> None:
    for one in status["conditions"]:
        kind, message = one["type"], one.get("message", "")
        if one["status"] == EXPECTED_STATUS[kind]:
            # The Reason column shows the first condition with a message: it must be empty if all is well.
            assert not message or kind == "Reconciling" or one["reason"] in EXPLAINED, (kind, message)
            continue
        assert len(message.split()) > 4, (kind, one["reason"], message)
        assert NAMES.search(message), (kind, one["reason"], message)


@pytest.mark.parametrize("kind", EXPECTED_STATUS)
@pytest.mark.parametrize("holds", [True, False, None])
def test_a_condition_without_a_message_gets_the_meaning_of_its_reason(kind: str, holds: bool | None) -> None:
    for reason in Reason:
        made = condition(kind, holds, reason, " ")
        assert made.message.strip() or made.status == EXPECTED_STATUS[kind]
        assert reason.meaning.endswith(".")


def test_conditions_are_built_in_one_place() -> None:
    sources = (places.REPOSITORY / "operator").rglob("*.py")
    users = [file.name for file in sources if re.search(r"\bConditionUpdate\(", file.read_text())]
    assert users == ["conditions.py"]


def test_every_condition_type_has_a_meaning() -> None:
    assert MEANINGS.keys() == EXPECTED_STATUS.keys()
