"""Which boxes a queue owns, and the message of a conflict."""

from typing import Any

import pytest

from deadletter.api.queue_status import OwnedBox
from deadletter.core.reasons import Reason
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding
from deadletter.plan.managed_boxes import (
    CONFIRM_DELETE_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    boxes_to_delete,
    conflict_finding,
    is_from_release_020,
    judge_ownership,
    new_intents,
    only_ids_differ,
    records_after,
    without_intents,
)
from deadletter.plan.queue_status import queue_status
from tests.plan.builders import NOW, connection, delivered_queue, plain_queue

DEAD, RETRY, LEDGER = "orders.billing.dlq", "orders.billing.dlq.retry", "orders.billing.dlq.ledger"
ALL = {DEAD: "id-1", RETRY: "id-2", LEDGER: "id-3"}
READY = {"type": "BoxesReady", "status": "True", "reason": "BoxesFound", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def box(name: str, id_: str = "", found: bool = False) -> OwnedBox:
    return OwnedBox(name=name, id=id_, found=found)


def owner(*records: OwnedBox, annotations: dict[str, str] | None = None, **status: Any) -> Any:
    made = delivered_queue(status=status | {"ownedBoxes": [one.to_wire() for one in records]})
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"annotations": annotations or {}})})


OURS = (box(DEAD, "id-1"), box(RETRY, "id-2"), box(LEDGER, "id-3"))
INTENT = (box(DEAD), box(RETRY), box(LEDGER))
FOUND = (box(DEAD, "id-1", True), box(RETRY, "id-2", True), box(LEDGER, "id-3", True))


@pytest.mark.parametrize(
    ("queue", "ids", "records"),
    [
        pytest.param(owner(), {}, INTENT, id="a new queue"),
        pytest.param(owner(*INTENT), ALL, OURS, id="killed after the boxes were created"),
        pytest.param(owner(*OURS), ALL, OURS, id="nothing changed"),
        pytest.param(owner(*OURS), {}, INTENT, id="deleted by others: created again, with other ids"),
        pytest.param(owner(*FOUND), {}, INTENT, id="found, deleted by others: the next ones are ours"),
        pytest.param(owner(conditions=[READY]), ALL, FOUND, id="Ready under 0.2.0"),
        pytest.param(owner(depth=3), ALL, FOUND, id="counted under 0.2.0, whose broker was away at the upgrade"),
        pytest.param(owner(*FOUND), ALL, FOUND, id="found stays found"),
        pytest.param(owner(annotations={TAKE_OVER_ANNOTATION: DEAD}), ALL, FOUND, id="taken over by name"),
        pytest.param(
            owner(*OURS), ALL | {LEDGER: "id-9"}, (*OURS[:2], box(LEDGER, "id-9", True)), id="a ledger made again"
        ),
        pytest.param(owner(box(DEAD, "", True)), {DEAD: ""}, (box(DEAD, "", True), *INTENT[1:]), id="no ids"),
    ],
)
def test_owned_boxes_are_recorded(queue: Any, ids: dict[str, str], records: tuple[OwnedBox, ...]) -> None:
    ownership = judge_ownership(queue, False, ids)
    assert (ownership.records, ownership.conflicts) == (records, ())


@pytest.mark.parametrize(
    ("queue", "ids", "foreign", "replaced"),
    [
        pytest.param(owner(), {DEAD: "id-1"}, (DEAD,), (), id="others created it"),
        pytest.param(owner(), {LEDGER: "id-3"}, (LEDGER,), (), id="even the ledger alone"),
        pytest.param(owner(), {DEAD: ""}, (DEAD,), (), id="without an id"),
        pytest.param(owner(*OURS), ALL | {DEAD: "id-9"}, (), (DEAD,), id="others created it again"),
        pytest.param(owner(*OURS), ALL | {DEAD: ""}, (), (DEAD,), id="its id is gone"),
        pytest.param(owner(*OURS, conditions=[READY]), ALL | {DEAD: "id-9"}, (), (DEAD,), id="Ready is no excuse"),
        pytest.param(owner(box(DEAD, "id-1"), conditions=[READY]), ALL, (RETRY, LEDGER), (), id="records are whole"),
        pytest.param(owner(annotations={TAKE_OVER_ANNOTATION: RETRY}), ALL, tuple(ALL), (), id="another is named"),
    ],
)
def test_boxes_of_others_are_conflicts(queue: Any, ids: dict[str, str], foreign: Any, replaced: Any) -> None:
    ownership = judge_ownership(queue, False, ids)
    assert (ownership.foreign, ownership.replaced) == (foreign, replaced)


def test_an_adopted_queue_owns_nothing() -> None:
    adopted = plain_queue(dead={"name": "orders.dead", "adopt": True})
    assert judge_ownership(adopted, False, {"orders.dead": "id-1"}).records == ()


def test_a_conflict_names_the_box_and_the_remedies() -> None:
    one = plain_queue()
    finding = conflict_finding(one, False, judge_ownership(one, False, {"orders.dead": "id-1"}))
    assert (finding.reason, finding.is_transient) == (Reason.BoxConflict, False)
    for part in (
        "orders.dead:",
        "dead.name",
        "dead.adopt: true",
        f"annotate dlq/orders '{TAKE_OVER_ANNOTATION}=orders.dead'",
    ):
        assert part in finding.message
    ledger = conflict_finding(one, False, judge_ownership(one, False, {"orders.dead.ledger": ""}))
    assert "dead.adopt" not in ledger.message
    made = owner()
    assert "dead.adopt" not in conflict_finding(made, False, judge_ownership(made, False, ALL)).message
    subject = owner(*OURS)
    text = conflict_finding(
        subject, False, judge_ownership(subject, False, ALL | {DEAD: "id-9", RETRY: "id-8"})
    ).message
    assert "created again by others" in text
    assert f"'{TAKE_OVER_ANNOTATION}={DEAD}'" in text


def test_boxes_found_are_deleted_only_after_a_confirmation() -> None:
    def drop(queue: Any, ids: dict[str, str]) -> Any:
        return boxes_to_delete(queue, judge_ownership(queue, False, ids), ids)

    assert drop(owner(*OURS), ALL) == (DEAD, RETRY, LEDGER)
    assert drop(owner(*OURS), ALL | {DEAD: "id-9"}) == (RETRY, LEDGER)
    assert drop(owner(), ALL) == ()
    blocked = drop(owner(*FOUND[:1], *OURS[1:]), ALL)
    assert isinstance(blocked, Finding)
    assert (blocked.reason, blocked.is_transient) == (Reason.DeletionBlocked, True)
    assert f"{CONFIRM_DELETE_ANNOTATION}=true" in blocked.message
    assert isinstance(drop(owner(conditions=[READY]), ALL), Finding), "deleted before it was ever recorded"
    confirmed = {CONFIRM_DELETE_ANNOTATION: "true"}
    assert drop(owner(*FOUND, annotations=confirmed), ALL) == (DEAD, RETRY, LEDGER)
    assert drop(owner(*FOUND), {}) == (DEAD, RETRY, LEDGER), "nothing is there to confirm"


def test_new_ids_alone_are_not_written_at_once() -> None:
    assert only_ids_differ(INTENT, OURS, ALL)
    assert only_ids_differ(OURS, OURS, ALL)
    assert not only_ids_differ((), INTENT, {})
    assert not only_ids_differ(OURS, INTENT, {})
    assert not only_ids_differ(OURS, (*OURS[:2], box(LEDGER, "id-9", True)), ALL)


def test_a_box_that_the_broker_refused_and_that_exists_later_is_found() -> None:
    refused = (box(DEAD, "id-1"), box(RETRY, found=True), box(LEDGER))
    assert records_after(INTENT, {}, {DEAD: "id-1"}, {RETRY}) == refused
    assert judge_ownership(owner(*refused), False, {DEAD: "id-1"}).records == refused, "nothing to write at a retry"
    later = (*refused[:1], box(RETRY, "id-2", found=True), refused[2])
    assert judge_ownership(owner(*refused), False, {DEAD: "id-1", RETRY: "id-2"}).records == later
    assert records_after(refused, {DEAD}, ALL, ()) == OURS, "created by us after all"
    assert boxes_to_delete(owner(*refused), judge_ownership(owner(*refused), False, {}), {}) == (DEAD, RETRY, LEDGER)


def test_a_record_is_withdrawn_if_others_created_the_box_first() -> None:
    assert new_intents((), INTENT) == {DEAD, RETRY, LEDGER}
    assert new_intents(INTENT, INTENT) == set(), "created by us perhaps, just before a crash"
    assert new_intents(FOUND, (*FOUND[:1], box(RETRY), FOUND[2])) == {RETRY}
    assert without_intents((), INTENT, {RETRY, LEDGER}) == (box(DEAD),)
    assert without_intents(FOUND, INTENT, {DEAD}) == (FOUND[0], *INTENT[1:]), "the broker had not shown it"


def test_records_stay_in_the_status_whatever_problem_there_is() -> None:
    facts = QueueFacts(connection=connection(), now=NOW)
    wire = [one.to_wire() for one in OURS]
    assert queue_status(owner(*OURS), facts, Finding(Reason.BrokerUnreachable, "away"))["ownedBoxes"] == wire
    assert queue_status(owner(), facts, None).keys().isdisjoint({"ownedBoxes"})
    new = queue_status(owner(*INTENT), QueueFacts(connection=connection(), owned_boxes=OURS, now=NOW), None)
    assert new["ownedBoxes"] == wire


def test_boxes_are_found_after_a_rollback_to_0_2_0_and_an_upgrade() -> None:
    """Release 0.2.0 prunes the records; after the second upgrade the boxes are found, not foreign."""
    pruned = owner(conditions=[READY], depth=0)
    assert is_from_release_020(pruned)
    assert judge_ownership(pruned, False, ALL).records == FOUND
    assert not is_from_release_020(owner(*OURS, conditions=[READY], depth=0))
    assert not is_from_release_020(owner())
