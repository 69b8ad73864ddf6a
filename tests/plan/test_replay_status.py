"""Conditions, counts and results of a Replay."""

import json
from dataclasses import replace
from typing import Any

import pytest

from deadletter.core import times
from deadletter.plan.facts import PodExit, ReplayFacts
from deadletter.plan.findings import first_finding
from deadletter.plan.replay_checks import REPLAY_CHECKS
from deadletter.plan.replay_status import is_finished, replay_status
from tests.plan.builders import (
    NOW,
    condition_field,
    connection,
    delivered_queue,
    partition_progress,
    plain_queue,
    ready_queue,
    replay,
    replay_facts,
    skipping,
)


def succeeded(facts: ReplayFacts, subject: Any = None) -> tuple[str, str]:
    status = replay_status(subject or replay(), facts, first_finding(REPLAY_CHECKS, subject or replay(), facts))
    one = next(one for one in status["conditions"] if one["type"] == "Succeeded")
    return one["status"], one["reason"]


def message(subject: Any, facts: ReplayFacts) -> str:
    return str(replay_status(subject, facts, None)["conditions"][0]["message"])


def without_origin(**more: Any) -> Any:
    return partition_progress(phase="Finished", skipped={"NoOrigin": 2}, **more)


def finished(matched: int, **more: Any) -> Any:
    return partition_progress(phase="Finished", matched=matched, **more)


def queue_of_dialect(dialect: str, **more: str) -> Any:
    return ready_queue(dead={"name": "x", "adopt": True, "dialect": dialect} | more)


FAILED = condition_field("Succeeded", "False", "NoProgress")
SERVICE = {"serviceRef": {"name": "s"}}
OTHER = {"queueRef": {"name": "other"}}
ELSEWHERE = {"target": delivered_queue("other"), "target_connection": connection()}
ADOPTED = {"dead": {"name": "x", "adopt": True}, "redrive": {"strategy": "Disabled"}}


CASES = [
    (replay(), replay_facts(), ("Unknown", "Freezing")),
    (replay(), replay_facts(queue=None), ("Unknown", "QueueNotFound")),
    (replay(), replay_facts(queue=plain_queue()), ("Unknown", "QueueNotReady")),
    (replay(), replay_facts(queue=ready_queue(**ADOPTED)), ("False", "RedriveDisabled")),
    (replay(mode="DryRun"), replay_facts(queue=ready_queue(**ADOPTED)), ("Unknown", "Freezing")),
    (replay(select={"where": "1"}), replay_facts(), ("False", "InvalidSpec")),
    (replay(previewRef={"name": "dry"}), replay_facts(), ("Unknown", "ReplayNotFound")),
    (
        replay(previewRef={"name": "dry"}),
        replay_facts(preview=replay("dry", mode="DryRun")),
        ("Unknown", "Pending"),
    ),
    (replay(previewRef={"name": "dry"}), replay_facts(preview=replay("dry")), ("False", "InvalidSpec")),
    (replay(to={"queueRef": {"name": "other"}}), replay_facts(), ("Unknown", "QueueNotFound")),
    (
        replay(to={"queueRef": {"name": "other"}}),
        replay_facts(target=plain_queue("other")),
        ("False", "InvalidSpec"),
    ),
    (replay(to={"serviceRef": {"name": "s"}}), replay_facts(services={"s": False}), ("Unknown", "ServiceNotFound")),
    (
        replay(previewRef={"name": "dry"}),
        replay_facts(preview=replay("dry", {"conditions": [FAILED]}, mode="DryRun")),
        ("False", "InvalidSpec"),
    ),
    (
        replay(previewRef={"name": "dry"}),
        replay_facts(preview=replay("dry", mode="DryRun", select={"state": "Archived"})),
        ("False", "InvalidSpec"),
    ),
    (replay(), replay_facts(blocking_replay="first"), ("Unknown", "Queued")),
    (replay(suspend=True), replay_facts(), ("Unknown", "Suspended")),
    (replay(), replay_facts(progress=(partition_progress(),)), ("Unknown", "Running")),
    (replay(), replay_facts(progress=(partition_progress(phase="Verifying"),)), ("Unknown", "Verifying")),
    (
        replay(),
        replay_facts(progress=(partition_progress(phase="Finished", matched=1, replayed=1),)),
        ("True", "AllReplayed"),
    ),
    (replay(), replay_facts(progress=(partition_progress(phase="Finished"),)), ("True", "NothingMatched")),
    (replay(), replay_facts(progress=(without_origin(matched=3, replayed=1),)), ("True", "PartlyReplayed")),
    (replay(), replay_facts(progress=(skipping(replayed=1, Expired=1),)), ("True", "PartlyReplayed")),
    (replay(action="Archive"), replay_facts(progress=(finished(2, archived=2),)), ("True", "AllArchived")),
    (replay(action="Archive"), replay_facts(progress=(finished(2, archived=1),)), ("True", "PartlyArchived")),
    (replay(action="Discard"), replay_facts(progress=(finished(2, discarded=2),)), ("True", "AllDiscarded")),
    (replay(action="Discard"), replay_facts(progress=(finished(2, discarded=1),)), ("True", "PartlyDiscarded")),
    (
        replay(mode="DryRun", action="Discard"),
        replay_facts(progress=(finished(2),)),
        ("True", "DryRunFinished"),
    ),
    (replay(), replay_facts(progress=(without_origin(matched=2),)), ("False", "OriginUnknown")),
    (replay(mode="DryRun"), replay_facts(progress=(without_origin(matched=2),)), ("True", "DryRunFinished")),
    (replay(), replay_facts(progress=(skipping(TransformError=2, LoopCap=1),)), ("False", "TransformError")),
    (
        replay(),
        replay_facts(progress=(skipping(TransformError=2), skipping(1, replayed=1))),
        ("True", "PartlyReplayed"),
    ),
    (replay(), replay_facts(progress=(skipping(AlreadySettled=2, Expired=1),)), ("True", "NothingMatched")),
    (replay(to={"name": "orders.dead"}), replay_facts(), ("False", "InvalidSpec")),
    (replay(to={"name": "orders.dead.ledger"}), replay_facts(), ("False", "InvalidSpec")),
    (
        replay(verify={}, to=OTHER),
        replay_facts(queue=queue_of_dialect("watermill"), **ELSEWHERE),
        ("Unknown", "Freezing"),
    ),
    (replay(), replay_facts(queue=queue_of_dialect("cronsumer")), ("False", "OriginUnknown")),
    (replay(to={"origin": True}), replay_facts(queue=queue_of_dialect("none")), ("False", "OriginUnknown")),
    (replay(), replay_facts(queue=queue_of_dialect("cronsumer", origin="orders")), ("Unknown", "Freezing")),
    (replay(to={"name": "elsewhere"}), replay_facts(queue=queue_of_dialect("cronsumer")), ("Unknown", "Freezing")),
    (replay(action="Discard"), replay_facts(queue=queue_of_dialect("cronsumer")), ("Unknown", "Freezing")),
    (replay(), replay_facts(queue=queue_of_dialect("watermill")), ("Unknown", "Freezing")),
    (replay(canary={"steps": [1]}), replay_facts(queue=queue_of_dialect("watermill")), ("False", "OriginUnknown")),
    (replay(verify={}), replay_facts(queue=queue_of_dialect("arroyo", origin="orders")), ("Unknown", "Freezing")),
    (
        replay(verify={}, to=SERVICE),
        replay_facts(queue=queue_of_dialect("watermill"), services={"s": True}),
        ("Unknown", "Freezing"),
    ),
    (
        replay(mode="DryRun"),
        replay_facts(progress=(partition_progress(phase="Finished", matched=1),)),
        ("True", "DryRunFinished"),
    ),
    (
        replay(),
        replay_facts(progress=(partition_progress(phase="Finished"), partition_progress(1))),
        ("Unknown", "Running"),
    ),
    (
        replay(),
        replay_facts(
            progress=(partition_progress(phase="Failed", reason="FailureShareExceeded"), partition_progress(1))
        ),
        ("False", "FailureShareExceeded"),
    ),
]


@pytest.mark.parametrize(("subject", "facts", "expected"), CASES)
def test_succeeded_has_the_expected_status_and_reason(
    subject: Any, facts: ReplayFacts, expected: tuple[str, str]
) -> None:
    assert succeeded(facts, subject) == expected


@pytest.mark.parametrize(("subject", "facts", "expected"), CASES)
def test_finished_is_true_once_waiting_for_the_replay_is_of_no_use(
    subject: Any, facts: ReplayFacts, expected: tuple[str, str]
) -> None:
    status = replay_status(subject, facts, first_finding(REPLAY_CHECKS, subject, facts))
    one = next(one for one in status["conditions"] if one["type"] == "Finished")
    assert (one["status"], one["reason"]) == ("False" if expected[0] == "Unknown" else "True", expected[1])


def test_an_older_worker_names_its_result_as_today() -> None:
    termination = json.dumps({"reason": "AllReplayed", "matched": 2, "discarded": 2})
    facts = replay_facts(job=job("Complete"), pod_exits=(PodExit(1, 0, message=termination),))
    assert succeeded(facts, replay(action="Discard")) == ("True", "AllDiscarded")


def job(kind: str, reason: str = "", at: int | None = None) -> dict[str, Any]:
    fields = {"type": kind, "status": "True", "reason": reason}
    return {"status": {"conditions": [fields if at is None else fields | {"lastTransitionTime": times.render(at)}]}}


def test_a_failed_job_gives_the_reason_of_its_pod() -> None:
    termination = json.dumps({"reason": "BoxRecreated", "message": "made again"})
    assert succeeded(replay_facts(job=job("Failed"), pod_exits=(PodExit(1, 5, "Error", termination),))) == (
        "False",
        "BoxRecreated",
    )
    late = replay_facts(job=job("Failed", "DeadlineExceeded"), pod_exits=(PodExit(1, 143, "Error", termination),))
    assert succeeded(late) == ("False", "DeadlineExceeded")
    assert message(replay(activeDeadline="5m"), late) == (
        "The Replay took longer than spec.activeDeadline, 5m. "
        "Letters that were sent are settled. Create another Replay for those that are still in the dead box."
    )


@pytest.mark.parametrize(
    ("ago", "more", "expected"),
    [
        (0, {}, ("Unknown", "Running")),
        (29_000, {}, ("Unknown", "Running")),
        (30_000, {}, ("False", "DeadlineExceeded")),
        (-20_000, {}, ("Unknown", "Running")),
        (-3_600_000, {}, ("False", "DeadlineExceeded")),  # a wrong clock must not delay the end
        (0, {"queue": None}, ("False", "DeadlineExceeded")),
        (0, {"connection": None}, ("False", "DeadlineExceeded")),
        (0, {"progress": (partition_progress(phase="Failed", reason="WindowExpired"),)}, ("False", "WindowExpired")),
    ],
)
def test_a_failed_job_ends_the_replay_only_after_the_next_sweeps(ago: int, more: Any, expected: Any) -> None:
    facts = replay_facts(
        **({"job": job("Failed", "DeadlineExceeded", NOW - ago), "progress": (partition_progress(next=3),)} | more)
    )
    (first, *_) = replay_status(replay(), facts, None)["conditions"]
    assert (first["status"], first["reason"]) == expected


def test_the_message_says_that_the_last_progress_of_a_failed_job_is_being_read() -> None:
    facts = replay_facts(
        job=job("Failed", at=NOW), pod_exits=(PodExit(NOW, 137, "OOMKilled"),), progress=(partition_progress(next=3),)
    )
    assert (
        message(replay(), facts)
        == "Job again-replay failed, and its last progress is being read. The last pod: exit code 137, OOMKilled."
    )
    assert (
        message(replay(), replace(facts, pod_exits=()))
        == "Job again-replay failed, and its last progress is being read."
    )


def test_the_termination_message_of_a_failed_job_gives_its_counts() -> None:
    termination = {"reason": "DeliveryFailed", "matched": 9, "replayed": 7, "failed_again": 2, "window": [[0, 0, 10]]}
    facts = replay_facts(job=job("Failed"), pod_exits=(PodExit(1, 3, "Error", json.dumps(termination)),))
    status = replay_status(replay(), facts, None)
    assert (status["matched"], status["replayed"], status["failedAgain"]) == (9, 7, 2)
    assert status["window"] == [{"partition": 0, "start": 0, "end": 10}]
    assert "remaining" not in status
    known = (partition_progress(next=4, matched=4, replayed=4), partition_progress(1, next=10))
    status = replay_status(replay(), replace(facts, progress=known), None)
    assert (status["matched"], status["replayed"], status["remaining"], len(status["window"])) == (9, 7, 6, 2)


def test_the_message_of_a_failure_comes_from_the_ledger() -> None:
    failed = partition_progress(phase="Failed", reason="FailureShareExceeded", message="3 of 4 letters failed again.")
    assert message(replay(), replay_facts(job={}, progress=(failed,))) == "3 of 4 letters failed again."


def test_letters_that_were_not_replayed_are_reported_with_a_remedy() -> None:
    skipped = skipping(replayed=4, TransformError=2, LoopCap=3, SelectorError=5)
    assert message(replay(), replay_facts(progress=(skipped,))) == (
        "4 of 9 letters were replayed; 3 were replayed as often as spec.maxReplays allows and stay in the dead box; "
        "2 could not be changed by spec.transform and stay in the dead box; "
        "spec.select.where cannot be evaluated for 5 letters, so it does not select them."
    )
    gone = skipping(Expired=2, AlreadySettled=1)
    assert message(replay(action="Archive"), replay_facts(progress=(gone,))) == (
        "0 of 3 letters were archived; 2 are deleted or never existed; 1 were settled before."
    )
    assert (
        message(replay(mode="DryRun"), replay_facts(progress=(skipping(replayed=4),)))
        == "4 of 4 letters would be replayed."
    )
    assert message(replay(), replay_facts(progress=(skipping(),))) == "No letter matched."
    assert message(replay(mode="DryRun"), replay_facts(progress=(skipping(SelectorError=5),))) == (
        "No letter matched; spec.select.where cannot be evaluated for 5 letters, so it does not select them."
    )


def test_pods_that_fail_without_progress_end_the_replay() -> None:
    exits = (PodExit(NOW - 1, 137), PodExit(NOW + 1, 137, "OOMKilled"), PodExit(NOW + 2, 137, "OOMKilled", "no json"))
    facts = replay_facts(
        job=job("Failed", "BackoffLimitExceeded"),
        pod_exits=exits,
        progress=(partition_progress(next=3, updated_at=NOW),),
    )
    (first, *_) = replay_status(replay(), facts, None)["conditions"]
    assert (first["status"], first["reason"]) == ("False", "NoProgress")
    assert first["message"] == (
        "2 pods of Job again-replay failed in a row without progress, the last one: exit code 137, OOMKilled. "
        "Correct the cause, then create another Replay for the letters that are left."
    )


def test_a_killed_pod_is_reported_until_another_makes_progress() -> None:
    killed = (PodExit(NOW + 1, 137, "OOMKilled"),)
    message = lambda at: replay_status(  # noqa: E731
        replay(), replay_facts(job={}, pod_exits=killed, progress=(partition_progress(next=3, updated_at=at),)), None
    )["conditions"][0]["message"]
    assert message(NOW) == "A pod of Job again-replay failed and another one continues: exit code 137, OOMKilled."
    assert message(NOW + 2) == "Letters of the window are being processed; status.remaining shows what is left."


def test_a_replay_without_a_ledger_is_reported_by_its_termination_message() -> None:
    termination = {
        "reason": "DryRunFinished",
        "matched": 3,
        "skipped": {"LoopCap": 1},
        "window": [[0, 0, 9]],
        "samples": ["0-1"],
        "targets": {"orders": 2},
        "bytes": 9,
    }
    subject = replay(mode="DryRun")
    status = replay_status(
        subject, replay_facts(job=job("Complete"), pod_exits=(PodExit(1, 0, message=json.dumps(termination)),)), None
    )
    assert (status["matched"], status["skipped"], status["window"]) == (3, 1, [{"partition": 0, "start": 0, "end": 9}])
    assert (status["targets"], status["bytes"]) == ([{"name": "orders", "letters": 2}], 9)
    assert status["conditions"][0]["reason"] == "DryRunFinished"
    assert is_finished(subject.model_copy(update={"status": type(subject.status).model_validate(status)}))
