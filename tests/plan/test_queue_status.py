"""Conditions and numbers of a queue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.box_types import FailureGroup
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import changed_conditions
from deadletter.plan.degraded import queue_pause_reason, retention_warning_ms
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import parse_conditions, queue_status
from tests.plan.builders import NOW, box_stats, connection, delivered_queue, plain_queue

HOUR = 3_600_000
ROOT = Path(__file__).parents[2]
FACTS = QueueFacts(connection=connection(), now=NOW)


def statuses_and_reasons(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_a_healthy_plain_queue() -> None:
    assert statuses_and_reasons(queue_status(plain_queue(), FACTS, None)) == {
        "Ready": ("True", "Reconciled"),
        "ReferencesResolved": ("True", "AllFound"),
        "BoxesReady": ("True", "BoxesFound"),
        "CourierAvailable": ("True", "NoCourierNeeded"),
        "Degraded": ("False", "AsExpected"),
        "Reconciling": ("False", "Reconciled"),
        "Stalled": ("False", "AsExpected"),
    }


def test_an_unreachable_broker_is_retried() -> None:
    status = statuses_and_reasons(
        queue_status(plain_queue(), FACTS, Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY))
    )
    assert status["Ready"] == status["BoxesReady"] == ("False", "BrokerUnreachable")
    assert status["ReferencesResolved"] == ("True", "AllFound")
    assert (status["Reconciling"][0], status["Stalled"][0]) == ("True", "False")


def test_a_permanent_problem_stalls_the_queue() -> None:
    status = statuses_and_reasons(
        queue_status(plain_queue(), FACTS, Finding(Reason.SelfReference, "no", is_transient=False))
    )
    assert status["Ready"] == status["ReferencesResolved"] == ("False", "SelfReference")
    assert status["Stalled"] == ("True", "SelfReference")
    assert status["BoxesReady"] == ("Unknown", "Pending")
    assert status["Reconciling"][0] == "False"


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        (None, ("False", "WaitingForCourier")),
        ({"status": {}}, ("False", "WaitingForCourier")),
        ({"status": {"availableReplicas": 1, "readyReplicas": 1, "replicas": 2}}, ("True", "CourierAvailable")),
    ],
)
def test_the_courier_is_available_with_one_available_pod(
    deployment: dict[str, Any] | None, expected: tuple[str, str]
) -> None:
    status = queue_status(delivered_queue(), replace(FACTS, deployment=deployment), None)
    assert statuses_and_reasons(status)["CourierAvailable"] == expected
    assert statuses_and_reasons(status)["Ready"][0] == expected[0]


def test_the_first_heartbeat_starts_the_consumer_group_for_good() -> None:
    with_heartbeat = replace(FACTS, stats=box_stats(couriers=(WorkerStatus("pod-0"),)))
    assert "consumerGroup" not in queue_status(delivered_queue(), FACTS, None)
    assert "consumerGroup" not in queue_status(plain_queue(), with_heartbeat, None)
    group = queue_status(delivered_queue(), with_heartbeat, None)["consumerGroup"]
    assert (group["name"], group["source"]) == ("billing", "orders")
    later = replace(FACTS, now=NOW + HOUR)
    assert queue_status(delivered_queue(status={"consumerGroup": group}), later, None)["consumerGroup"] == group


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = queue_status(plain_queue(), FACTS, None)
    queue = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(first)})
    later = queue_status(queue, replace(FACTS, now=NOW + HOUR), None)
    assert later == first
    worse = queue_status(
        queue, replace(FACTS, now=NOW + HOUR), Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY)
    )
    changed = {one.type for one in changed_conditions(parse_conditions(first), parse_conditions(worse))}
    assert changed == {"Ready", "BoxesReady", "Reconciling"}
    transition_times = {one["type"]: one["lastTransitionTime"] for one in worse["conditions"]}
    assert transition_times["Ready"] != transition_times["Degraded"]


@pytest.mark.parametrize(
    ("spec", "stats", "reason"),
    [
        ({}, box_stats(5), None),
        ({"alerts": {"depth": 5}}, box_stats(5), None),
        ({"alerts": {"depth": 5}}, box_stats(6), "DepthHigh"),
        ({"alerts": {"age": "1h"}}, box_stats(1, NOW - HOUR - 1), "AgeHigh"),
        ({"alerts": {"age": "1h"}}, box_stats(1, NOW - HOUR + 1), None),
        ({"capacity": {"maxLetters": 10}}, box_stats(10), "CapacityReached"),
        ({"alerts": {"depth": 5}}, box_stats(6, caught_up=False), None),
        ({}, box_stats(0, couriers=(WorkerStatus("p", circuit="Open", at=NOW - 1000),)), "CircuitOpen"),
        ({}, box_stats(0, couriers=(WorkerStatus("p", paused="TargetForbidden", at=NOW),)), "TargetForbidden"),
        (
            {},
            box_stats(0, couriers=(WorkerStatus("p", paused="FailureShareExceeded", at=NOW),)),
            "FailureShareExceeded",
        ),
        ({}, box_stats(0, couriers=(WorkerStatus("p", paused="Suspended", at=NOW),)), None),
        ({}, box_stats(0, couriers=(WorkerStatus("p", deleted=7, deleted_at=NOW - HOUR),)), "SourceMessagesDeleted"),
        ({}, box_stats(0, couriers=(WorkerStatus("p", deleted=7, deleted_at=NOW - 24 * HOUR),)), None),
    ],
)
def test_degraded_reports_the_worst_problem(spec: dict[str, Any], stats: Any, reason: str | None) -> None:
    status = statuses_and_reasons(queue_status(plain_queue(**spec), replace(FACTS, stats=stats), None))
    assert status["Degraded"] == (("True", reason) if reason else ("False", "AsExpected"))
    assert status["Ready"][0] == "True"


def degraded(queue: Any, facts: QueueFacts) -> dict[str, Any]:
    return next(one for one in queue_status(queue, facts, None)["conditions"] if one["type"] == "Degraded")


def test_degraded_lists_all_problems_and_the_most_severe_is_the_reason() -> None:
    paused = WorkerStatus("p", paused="CapacityReached", at=NOW)
    stats = box_stats(
        10, NOW - 23 * HOUR, couriers=(paused, replace(paused, pod="q"), WorkerStatus("r", circuit="Open"))
    )
    queue = plain_queue(capacity={"maxLetters": 10}, alerts={"depth": 5, "age": "1h"})
    found = degraded(queue, replace(FACTS, stats=stats, retention_ms=24 * HOUR))
    assert found["reason"] == "RetentionLossSoon"
    assert found["message"].startswith(
        "5 problems: RetentionLossSoon, CapacityReached, CircuitOpen, DepthHigh, AgeHigh. "
        "Retention deletes the oldest open letter at status.retentionLossTime."
    )
    assert "Pod p is paused" in found["message"]
    assert "Deliveries fail" in found["message"]
    alone = degraded(plain_queue(alerts={"depth": 5}), replace(FACTS, stats=box_stats(10)))
    assert alone["message"].startswith("More than 5 letters are open")
    lost = replace(FACTS, stats=stats, retention_ms=24 * HOUR, loss=ParkedLetterLoss(3, NOW - HOUR))
    assert degraded(queue, lost)["reason"] == "ParkedLettersLost"


def test_a_ledger_problem_among_others_stays_until_a_restarted_operator_has_checked_it() -> None:
    queue, facts = plain_queue(alerts={"depth": 5}), replace(FACTS, stats=box_stats(10), ledger_problem="it lacks")
    status = queue_status(queue, facts, None)
    known = queue.model_copy(update={"status": type(queue.status).model_validate(status)})
    found = degraded(known, replace(facts, ledger_problem=None))
    assert found["message"].startswith("2 problems: LedgerUnderReplicated, DepthHigh. The ledger has fewer replicas")
    assert found["message"].count("problems") == 1
    assert degraded(known, replace(facts, ledger_problem=""))["reason"] == "DepthHigh"


def test_a_ledger_with_too_few_replicas_is_reported_until_it_has_enough() -> None:
    lacks = "orders.dead.ledger has 1 of 3 replicas, and the broker refuses to raise it (NotAuthorised)"
    swept = replace(FACTS, stats=box_stats(0))
    status = queue_status(plain_queue(), replace(swept, ledger_problem=lacks), None)
    found = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert (found["status"], found["reason"]) == ("True", "LedgerUnderReplicated")
    assert "has 1 of 3 replicas" in found["message"]
    assert "ALTER on the cluster" in found["message"]
    known = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(status)})
    restarted = queue_status(known, swept, None)
    assert restarted["conditions"] == status["conditions"], "a restarted operator has not checked the ledger yet"
    assert statuses_and_reasons(queue_status(known, replace(swept, ledger_problem=""), None))["Degraded"] == (
        "False",
        "AsExpected",
    )


@pytest.mark.parametrize(
    ("later", "degraded"), [(HOUR, ("True", "ParkedLettersLost")), (24 * HOUR, ("False", "AsExpected"))]
)
def test_lost_letters_stay_counted_and_degrade_for_a_day(later: int, degraded: tuple[str, str]) -> None:
    status = queue_status(
        delivered_queue(), replace(FACTS, stats=box_stats(0), loss=ParkedLetterLoss(30, NOW - later)), None
    )
    assert statuses_and_reasons(status)["Degraded"] == degraded
    assert (status["lostParkedLetters"], "lostParkedLettersTime" in status) == (30, True)


@pytest.mark.parametrize(("depth", "degraded"), [(99, ("False", "AsExpected")), (100, ("True", "DepthHigh"))])
def test_the_example_weakincentives_is_degraded_from_a_hundred_letters_on(
    depth: int, degraded: tuple[str, str]
) -> None:
    documents = yaml.safe_load_all((ROOT / "examples/weakincentives.yaml").read_text())
    body = next(one for one in documents if one["kind"] == "DeadLetterQueue")
    queue = DeadLetterQueue.from_body(body)
    assert (
        statuses_and_reasons(queue_status(queue, replace(FACTS, stats=box_stats(depth)), None))["Degraded"] == degraded
    )


def test_degraded_warns_before_retention_deletes_letters() -> None:
    facts = replace(FACTS, stats=box_stats(1, NOW - 23 * HOUR), retention_ms=24 * HOUR)
    status = queue_status(plain_queue(), facts, None)
    assert statuses_and_reasons(status)["Degraded"] == ("True", "RetentionLossSoon")
    assert status["retentionLossTime"] == "2026-11-16T01:00:00Z"


@pytest.mark.parametrize(
    ("retention", "warning"),
    [(24 * HOUR, 6 * HOUR), (96 * HOUR, 24 * HOUR), (720 * HOUR, 24 * HOUR), (-1, None), (None, None)],
)
def test_short_retention_warns_later(retention: int | None, warning: int | None) -> None:
    assert retention_warning_ms(replace(FACTS, retention_ms=retention)) == warning


def test_depth_utilization_and_groups_are_shown() -> None:
    group = FailureGroup("ab12cd34", "Timeout", "Network", 4, NOW, NOW)
    stats = box_stats(4, NOW, groups=(group,), upper_bound=True)
    status = queue_status(plain_queue(capacity={"maxLetters": 16}), replace(FACTS, stats=stats), None)
    assert (status["depth"], status["utilization"], status["depthIsUpperBound"]) == (4, 25, True)
    assert status["groups"][0]["fingerprint"] == "ab12cd34"
    assert "depth" not in queue_status(plain_queue(), replace(FACTS, stats=box_stats(4, caught_up=False)), None)


@pytest.mark.parametrize(
    ("spec", "stats", "expected"),
    [
        ({"suspend": True}, None, "Suspended"),
        ({"capacity": {"maxLetters": 2}}, box_stats(2), "CapacityReached"),
        ({"capacity": {"maxLetters": 2, "onFull": "Alert"}}, box_stats(2), ""),
        ({"capacity": {"maxLetters": 2}}, box_stats(1), ""),
        ({"capacity": {"maxLetters": 2}}, None, ""),
    ],
)
def test_a_suspended_or_full_queue_pauses(spec: dict[str, Any], stats: Any, expected: str) -> None:
    assert queue_pause_reason(delivered_queue(**spec), stats) == expected


def test_without_statistics_the_last_status_stays() -> None:
    queue = plain_queue(alerts={"depth": 5}, capacity={"maxLetters": 6})
    status = queue_status(queue, replace(FACTS, stats=box_stats(6, NOW)), None)
    known = queue.model_copy(update={"status": type(queue.status).model_validate(status)})
    assert queue_status(known, FACTS, None) == status
    assert queue_pause_reason(known, None) == "CapacityReached"
