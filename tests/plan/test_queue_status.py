"""Conditions and numbers of a queue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.boxes import FailureGroup
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
SEEN = QueueFacts(connection=connection(), now=NOW)


def said(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_a_plain_queue_that_is_well() -> None:
    assert said(queue_status(plain_queue(), SEEN, None)) == {
        "Ready": ("True", "Reconciled"),
        "ReferencesResolved": ("True", "AllFound"),
        "BoxesReady": ("True", "BoxesFound"),
        "CourierAvailable": ("True", "NoCourierNeeded"),
        "Degraded": ("False", "AsExpected"),
        "Reconciling": ("False", "Reconciled"),
        "Stalled": ("False", "AsExpected"),
    }


def test_a_broker_that_is_away() -> None:
    status = said(queue_status(plain_queue(), SEEN, Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY)))
    assert status["Ready"] == status["BoxesReady"] == ("False", "BrokerUnreachable")
    assert status["ReferencesResolved"] == ("True", "AllFound")
    assert (status["Reconciling"][0], status["Stalled"][0]) == ("True", "False")


def test_what_never_heals_stalls() -> None:
    status = said(queue_status(plain_queue(), SEEN, Finding(Reason.SelfReference, "no", is_transient=False)))
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
def test_a_courier_counts_when_it_is_available(deployment: dict[str, Any] | None, expected: tuple[str, str]) -> None:
    status = queue_status(delivered_queue(), replace(SEEN, deployment=deployment), None)
    assert said(status)["CourierAvailable"] == expected
    assert said(status)["Ready"][0] == expected[0]


def test_a_group_has_started_when_a_courier_was_heard_and_stays_so() -> None:
    heard = replace(SEEN, stats=box_stats(couriers=(WorkerStatus("pod-0"),)))
    assert "consumerGroup" not in queue_status(delivered_queue(), SEEN, None)
    assert "consumerGroup" not in queue_status(plain_queue(), heard, None)
    group = queue_status(delivered_queue(), heard, None)["consumerGroup"]
    assert (group["name"], group["source"]) == ("billing", "orders")
    later = replace(SEEN, now=NOW + HOUR)
    assert queue_status(delivered_queue(status={"consumerGroup": group}), later, None)["consumerGroup"] == group


def test_a_clock_moves_only_when_its_status_turns() -> None:
    first = queue_status(plain_queue(), SEEN, None)
    queue = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(first)})
    later = queue_status(queue, replace(SEEN, now=NOW + HOUR), None)
    assert later == first
    worse = queue_status(
        queue, replace(SEEN, now=NOW + HOUR), Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY)
    )
    news = {one.type for one in changed_conditions(parse_conditions(first), parse_conditions(worse))}
    assert news == {"Ready", "BoxesReady", "Reconciling"}
    clocks = {one["type"]: one["lastTransitionTime"] for one in worse["conditions"]}
    assert clocks["Ready"] != clocks["Degraded"]


@pytest.mark.parametrize(
    ("spec", "seen", "reason"),
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
    ],
)
def test_degraded_says_the_worst(spec: dict[str, Any], seen: Any, reason: str | None) -> None:
    status = said(queue_status(plain_queue(**spec), replace(SEEN, stats=seen), None))
    assert status["Degraded"] == (("True", reason) if reason else ("False", "AsExpected"))
    assert status["Ready"][0] == "True"


def test_a_ledger_with_too_few_replicas_is_reported_until_it_is_raised() -> None:
    lacks = "orders.dead.ledger has 1 of 3 replicas, and the broker refuses to raise it (NotAuthorised)"
    looked = replace(SEEN, stats=box_stats(0))
    told = queue_status(plain_queue(), replace(looked, ledger_problem=lacks), None)
    found = next(one for one in told["conditions"] if one["type"] == "Degraded")
    assert (found["status"], found["reason"]) == ("True", "LedgerUnderReplicated")
    assert "has 1 of 3 replicas" in found["message"]
    assert "ALTER on the cluster" in found["message"]
    known = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(told)})
    restarted = queue_status(known, looked, None)
    assert restarted["conditions"] == told["conditions"], "a restarted operator has not asked yet"
    assert said(queue_status(known, replace(looked, ledger_problem=""), None))["Degraded"] == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("later", "degraded"), [(HOUR, ("True", "ParkedLettersLost")), (24 * HOUR, ("False", "AsExpected"))]
)
def test_lost_letters_are_counted_for_good_and_degrade_for_a_day(later: int, degraded: tuple[str, str]) -> None:
    status = queue_status(
        delivered_queue(), replace(SEEN, stats=box_stats(0), loss=ParkedLetterLoss(30, NOW - later)), None
    )
    assert said(status)["Degraded"] == degraded
    assert (status["lostParkedLetters"], "lostParkedLettersTime" in status) == (30, True)


@pytest.mark.parametrize(("depth", "degraded"), [(99, ("False", "AsExpected")), (100, ("True", "DepthHigh"))])
def test_weakincentives_is_degraded_from_a_hundred_letters_on(depth: int, degraded: tuple[str, str]) -> None:
    documents = yaml.safe_load_all((ROOT / "examples/weakincentives.yaml").read_text())
    body = next(one for one in documents if one["kind"] == "DeadLetterQueue")
    queue = DeadLetterQueue.from_body(body)
    assert said(queue_status(queue, replace(SEEN, stats=box_stats(depth)), None))["Degraded"] == degraded


def test_retention_that_comes_near() -> None:
    facts = replace(SEEN, stats=box_stats(1, NOW - 23 * HOUR), retention_ms=24 * HOUR)
    status = queue_status(plain_queue(), facts, None)
    assert said(status)["Degraded"] == ("True", "RetentionLossSoon")
    assert status["retentionLossTime"] == "2026-11-16T01:00:00Z"


@pytest.mark.parametrize(
    ("retention", "warning"),
    [(24 * HOUR, 6 * HOUR), (96 * HOUR, 24 * HOUR), (720 * HOUR, 24 * HOUR), (-1, None), (None, None)],
)
def test_short_lives_are_warned_of_later(retention: int | None, warning: int | None) -> None:
    assert retention_warning_ms(replace(SEEN, retention_ms=retention)) == warning


def test_numbers_and_groups() -> None:
    group = FailureGroup("ab12cd34", "Timeout", "Network", 4, NOW, NOW)
    seen = box_stats(4, NOW, groups=(group,), upper_bound=True)
    status = queue_status(plain_queue(capacity={"maxLetters": 16}), replace(SEEN, stats=seen), None)
    assert (status["depth"], status["utilization"], status["depthIsUpperBound"]) == (4, 25, True)
    assert status["groups"][0]["fingerprint"] == "ab12cd34"
    assert "depth" not in queue_status(plain_queue(), replace(SEEN, stats=box_stats(4, caught_up=False)), None)


@pytest.mark.parametrize(
    ("spec", "seen", "expected"),
    [
        ({"suspend": True}, None, "Suspended"),
        ({"capacity": {"maxLetters": 2}}, box_stats(2), "CapacityReached"),
        ({"capacity": {"maxLetters": 2, "onFull": "Alert"}}, box_stats(2), ""),
        ({"capacity": {"maxLetters": 2}}, box_stats(1), ""),
        ({"capacity": {"maxLetters": 2}}, None, ""),
    ],
)
def test_the_gate(spec: dict[str, Any], seen: Any, expected: str) -> None:
    assert queue_pause_reason(delivered_queue(**spec), seen) == expected


def test_without_a_reading_the_last_word_stands() -> None:
    queue = plain_queue(alerts={"depth": 5}, capacity={"maxLetters": 6})
    told = queue_status(queue, replace(SEEN, stats=box_stats(6, NOW)), None)
    known = queue.model_copy(update={"status": type(queue.status).model_validate(told)})
    assert queue_status(known, SEEN, None) == told
    assert queue_pause_reason(known, None) == "CapacityReached"
