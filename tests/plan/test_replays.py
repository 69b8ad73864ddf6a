"""Checks, counts and endings of a Replay."""

import json
from dataclasses import replace
from typing import Any

import pytest

from deadletter.core import times
from deadletter.plan.facts import PodExit, ReplayFacts
from deadletter.plan.findings import first_finding
from deadletter.plan.replays import REPLAY_CHECKS, progress_counts, is_finished, replay_status
from tests.plan.things import NOW, connection, delivered, plain, replay, tally

READY = {
    "conditions": [
        {"type": "BoxesReady", "status": "True", "reason": "BoxesFound", "lastTransitionTime": "2026-11-16T00:00:00Z"}
    ]
}

FAILED = {
    "conditions": [
        {"type": "Succeeded", "status": "False", "reason": "NoProgress", "lastTransitionTime": "2026-11-16T00:00:00Z"}
    ]
}


def queue(**more: Any) -> Any:
    made = plain(**more)
    return made.model_copy(update={"status": type(made.status).model_validate(READY)})


def seen(**more: Any) -> ReplayFacts:
    return ReplayFacts(**({"queue": queue(), "connection": connection(), "now": NOW} | more))


def succeeded(facts: ReplayFacts, again: Any = None) -> tuple[str, str]:
    status = replay_status(again or replay(), facts, first_finding(REPLAY_CHECKS, again or replay(), facts))
    one = next(one for one in status["conditions"] if one["type"] == "Succeeded")
    return one["status"], one["reason"]


def message(again: Any, facts: ReplayFacts) -> str:
    return str(replay_status(again, facts, None)["conditions"][0]["message"])


def lost(**more: Any) -> Any:
    return tally(phase="Finished", skipped={"NoOrigin": 2}, **more)


def skipping(partition: int = 0, replayed: int = 0, **skipped: int) -> Any:
    matched = sum(count for why, count in skipped.items() if why != "SelectorError") + replayed
    told = {"phase": "Finished", "reason": "AllReplayed", "matched": matched, "replayed": replayed}
    return tally(partition, skipped=skipped, **told)


def pinned(dialect: str, **more: str) -> Any:
    return queue(dead={"name": "x", "adopt": True, "dialect": dialect} | more)


SERVICE = {"serviceRef": {"name": "s"}}
OTHER = {"queueRef": {"name": "other"}}
ELSEWHERE = {"target": delivered("other"), "target_connection": connection()}
ADOPTED = {"dead": {"name": "x", "adopt": True}, "redrive": {"strategy": "Disabled"}}


@pytest.mark.parametrize(
    ("again", "facts", "expected"),
    [
        (replay(), seen(), ("Unknown", "Freezing")),
        (replay(), seen(queue=None), ("Unknown", "QueueNotFound")),
        (replay(), seen(queue=plain()), ("Unknown", "QueueNotReady")),
        (replay(), seen(queue=queue(**ADOPTED)), ("False", "RedriveDisabled")),
        (replay(mode="DryRun"), seen(queue=queue(**ADOPTED)), ("Unknown", "Freezing")),
        (replay(select={"where": "1"}), seen(), ("False", "InvalidSpec")),
        (replay(previewRef={"name": "dry"}), seen(), ("Unknown", "ReplayNotFound")),
        (replay(previewRef={"name": "dry"}), seen(preview=replay("dry", mode="DryRun")), ("Unknown", "Pending")),
        (replay(previewRef={"name": "dry"}), seen(preview=replay("dry")), ("False", "InvalidSpec")),
        (replay(to={"queueRef": {"name": "other"}}), seen(), ("Unknown", "QueueNotFound")),
        (replay(to={"queueRef": {"name": "other"}}), seen(target=plain("other")), ("False", "InvalidSpec")),
        (replay(to={"serviceRef": {"name": "s"}}), seen(services={"s": False}), ("Unknown", "ServiceNotFound")),
        (
            replay(previewRef={"name": "dry"}),
            seen(preview=replay("dry", FAILED, mode="DryRun")),
            ("False", "InvalidSpec"),
        ),
        (
            replay(previewRef={"name": "dry"}),
            seen(preview=replay("dry", mode="DryRun", select={"state": "Archived"})),
            ("False", "InvalidSpec"),
        ),
        (replay(), seen(ahead="first"), ("Unknown", "Queued")),
        (replay(suspend=True), seen(), ("Unknown", "Suspended")),
        (replay(), seen(tallies=(tally(),)), ("Unknown", "Running")),
        (replay(), seen(tallies=(tally(phase="Verifying"),)), ("Unknown", "Verifying")),
        (replay(), seen(tallies=(tally(phase="Finished", matched=1, replayed=1),)), ("True", "AllReplayed")),
        (replay(), seen(tallies=(tally(phase="Finished"),)), ("True", "NothingMatched")),
        (replay(), seen(tallies=(lost(matched=3, replayed=1),)), ("True", "AllReplayed")),
        (replay(), seen(tallies=(lost(matched=2),)), ("False", "OriginUnknown")),
        (replay(mode="DryRun"), seen(tallies=(lost(matched=2),)), ("True", "DryRunFinished")),
        (replay(), seen(tallies=(skipping(TransformError=2, LoopCap=1),)), ("False", "TransformError")),
        (replay(), seen(tallies=(skipping(TransformError=2), skipping(1, replayed=1))), ("True", "AllReplayed")),
        (replay(), seen(tallies=(skipping(AlreadySettled=2, Expired=1),)), ("True", "NothingMatched")),
        (replay(to={"name": "orders.dead"}), seen(), ("False", "InvalidSpec")),
        (replay(to={"name": "orders.dead.ledger"}), seen(), ("False", "InvalidSpec")),
        (replay(verify={}, to=OTHER), seen(queue=pinned("watermill"), **ELSEWHERE), ("Unknown", "Freezing")),
        (replay(), seen(queue=pinned("cronsumer")), ("False", "OriginUnknown")),
        (replay(to={"origin": True}), seen(queue=pinned("none")), ("False", "OriginUnknown")),
        (replay(), seen(queue=pinned("cronsumer", origin="orders")), ("Unknown", "Freezing")),
        (replay(to={"name": "elsewhere"}), seen(queue=pinned("cronsumer")), ("Unknown", "Freezing")),
        (replay(action="Discard"), seen(queue=pinned("cronsumer")), ("Unknown", "Freezing")),
        (replay(), seen(queue=pinned("watermill")), ("Unknown", "Freezing")),
        (replay(canary={"steps": [1]}), seen(queue=pinned("watermill")), ("False", "OriginUnknown")),
        (replay(verify={}), seen(queue=pinned("arroyo", origin="orders")), ("Unknown", "Freezing")),
        (replay(verify={}, to=SERVICE), seen(queue=pinned("watermill"), services={"s": True}), ("Unknown", "Freezing")),
        (replay(mode="DryRun"), seen(tallies=(tally(phase="Finished", matched=1),)), ("True", "DryRunFinished")),
        (replay(), seen(tallies=(tally(phase="Finished"), tally(1))), ("Unknown", "Running")),
        (
            replay(),
            seen(tallies=(tally(phase="Failed", reason="FailureShareExceeded"), tally(1))),
            ("False", "FailureShareExceeded"),
        ),
    ],
)
def test_what_is_said(again: Any, facts: ReplayFacts, expected: tuple[str, str]) -> None:
    assert succeeded(facts, again) == expected


def job(kind: str, reason: str = "", at: int | None = None) -> dict[str, Any]:
    told = {"type": kind, "status": "True", "reason": reason}
    return {"status": {"conditions": [told if at is None else told | {"lastTransitionTime": times.render(at)}]}}


def test_a_job_that_failed_says_why() -> None:
    words = json.dumps({"reason": "BoxRecreated", "message": "made again"})
    assert succeeded(seen(job=job("Failed"), exits=(PodExit(1, 5, "Error", words),))) == ("False", "BoxRecreated")
    late = seen(job=job("Failed", "DeadlineExceeded"), exits=(PodExit(1, 143, "Error", words),))
    assert succeeded(late) == ("False", "DeadlineExceeded")
    assert message(replay(activeDeadline="5m"), late) == (
        "It took longer than 5m. What was sent is settled; the other letters are still in the dead box."
    )


@pytest.mark.parametrize(
    ("ago", "more", "expected"),
    [
        (0, {}, ("Unknown", "Running")),
        (29_000, {}, ("Unknown", "Running")),
        (30_000, {}, ("False", "DeadlineExceeded")),
        (-20_000, {}, ("Unknown", "Running")),
        (-3_600_000, {}, ("False", "DeadlineExceeded")),  # clocks that differ keep nobody waiting
        (0, {"queue": None}, ("False", "DeadlineExceeded")),
        (0, {"connection": None}, ("False", "DeadlineExceeded")),
        (0, {"tallies": (tally(phase="Failed", reason="WindowExpired"),)}, ("False", "WindowExpired")),
    ],
)
def test_a_job_that_failed_just_now_is_told_with_the_next_reading(ago: int, more: Any, expected: Any) -> None:
    facts = seen(**({"job": job("Failed", "DeadlineExceeded", NOW - ago), "tallies": (tally(next=3),)} | more))
    (first, *_) = replay_status(replay(), facts, None)["conditions"]
    assert (first["status"], first["reason"]) == expected


def test_while_letters_of_a_failed_job_are_counted_it_says_so() -> None:
    facts = seen(job=job("Failed", at=NOW), exits=(PodExit(NOW, 137, "OOMKilled"),), tallies=(tally(next=3),))
    assert (
        message(replay(), facts)
        == "Its Job failed, and what it did is counted. The last pod: exit code 137, OOMKilled."
    )
    assert message(replay(), replace(facts, exits=())) == "Its Job failed, and what it did is counted."


def test_the_last_words_of_a_failed_job_are_its_counts() -> None:
    said = {"reason": "DeliveryFailed", "matched": 9, "replayed": 7, "failed_again": 2, "window": [[0, 0, 10]]}
    facts = seen(job=job("Failed"), exits=(PodExit(1, 3, "Error", json.dumps(said)),))
    status = replay_status(replay(), facts, None)
    assert (status["matched"], status["replayed"], status["failedAgain"]) == (9, 7, 2)
    assert status["window"] == [{"partition": 0, "start": 0, "end": 10}]
    assert "remaining" not in status
    known = (tally(next=4, matched=4, replayed=4), tally(1, next=10))
    status = replay_status(replay(), replace(facts, tallies=known), None)
    assert (status["matched"], status["replayed"], status["remaining"], len(status["window"])) == (9, 7, 6, 2)


def test_why_it_failed_is_in_the_ledger_whatever_became_of_the_pod() -> None:
    failed = tally(phase="Failed", reason="FailureShareExceeded", message="3 of 4 letters failed again.")
    assert message(replay(), seen(job={}, tallies=(failed,))) == "3 of 4 letters failed again."


def test_letters_that_were_not_taken_are_told_with_what_helps() -> None:
    skipped = skipping(replayed=4, TransformError=2, LoopCap=3, SelectorError=5)
    assert message(replay(), seen(tallies=(skipped,))) == (
        "4 of 9 letters were replayed; 3 were replayed as often as spec.maxReplays allows and stay; "
        "2 cannot be mended by spec.transform and stay as they are; "
        "spec.select.where cannot be evaluated for 5 letters, so it does not select them."
    )
    gone = skipping(Expired=2, AlreadySettled=1)
    assert message(replay(action="Archive"), seen(tallies=(gone,))) == (
        "0 of 3 letters were archived; 2 are gone or never were; 1 were settled before."
    )
    assert message(replay(mode="DryRun"), seen(tallies=(skipping(replayed=4),))) == "4 of 4 letters would be replayed."
    assert message(replay(), seen(tallies=(skipping(),))) == "No letter matched."
    assert message(replay(mode="DryRun"), seen(tallies=(skipping(SelectorError=5),))) == (
        "No letter matched; spec.select.where cannot be evaluated for 5 letters, so it does not select them."
    )


def test_pods_that_end_without_a_step_forward_end_the_replay_and_say_how() -> None:
    exits = (PodExit(NOW - 1, 137), PodExit(NOW + 1, 137, "OOMKilled"), PodExit(NOW + 2, 137, "OOMKilled", "no json"))
    facts = seen(job=job("Failed", "BackoffLimitExceeded"), exits=exits, tallies=(tally(next=3, updated_at=NOW),))
    (first, *_) = replay_status(replay(), facts, None)["conditions"]
    assert (first["status"], first["reason"]) == ("False", "NoProgress")
    assert first["message"] == "2 pods ended without a step forward, the last one: exit code 137, OOMKilled."


def test_a_killed_pod_is_told_until_another_has_gone_on() -> None:
    killed = (PodExit(NOW + 1, 137, "OOMKilled"),)
    message = lambda at: replay_status(  # noqa: E731
        replay(), seen(job={}, exits=killed, tallies=(tally(next=3, updated_at=at),)), None
    )["conditions"][0]["message"]
    assert message(NOW) == "A pod ended and another goes on: exit code 137, OOMKilled."
    assert message(NOW + 2) == ""


def test_a_replay_without_a_ledger_answers_by_its_last_words() -> None:
    words = {
        "reason": "DryRunFinished",
        "matched": 3,
        "skipped": {"LoopCap": 1},
        "window": [[0, 0, 9]],
        "samples": ["0-1"],
        "targets": {"orders": 2},
        "bytes": 9,
    }
    again = replay(mode="DryRun")
    status = replay_status(again, seen(job=job("Complete"), exits=(PodExit(1, 0, message=json.dumps(words)),)), None)
    assert (status["matched"], status["skipped"], status["window"]) == (3, 1, [{"partition": 0, "start": 0, "end": 9}])
    assert (status["targets"], status["bytes"]) == ([{"name": "orders", "letters": 2}], 9)
    assert status["conditions"][0]["reason"] == "DryRunFinished"
    assert is_finished(again.model_copy(update={"status": type(again.status).model_validate(status)}))


def test_counts_are_summed_over_partitions() -> None:
    one = tally(0, 10, next=4, matched=3, replayed=2, skipped={"LoopCap": 1}, groups={"ab": 3}, samples=("0-1",))
    one = one.evolve(targets={"orders": 2}, bytes=100)
    other = tally(1, 20, matched=5, replayed=5, failed_again=1, groups={"ab": 1, "cd": 4}, samples=("1-7",))
    other = other.evolve(targets={"orders": 1, "bills": 4}, bytes=11)
    summed = progress_counts((other, one))
    assert (summed["matched"], summed["replayed"], summed["failedAgain"], summed["remaining"]) == (8, 7, 1, 6)
    assert summed["skippedBy"] == {"LoopCap": 1}
    assert [group["letters"] for group in summed["groups"]] == [4, 4]
    assert summed["targets"] == [{"name": "bills", "letters": 4}, {"name": "orders", "letters": 3}]
    assert summed["bytes"] == 111
    assert summed["samples"] == ["0-1", "1-7"]
    assert summed["window"][1] == {"partition": 1, "start": 0, "end": 20}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "3s"),  # 100 letters seen in 2 s, 70 of them to send: at half that pace
        ({"rate": {"perSecond": 10}}, "7s"),
        ({"rate": {"perSecond": 10}, "canary": {"steps": [1, 10], "wait": "30s"}, "verify": {"window": "2m"}}, "3m7s"),
        ({"action": "Discard"}, "3s"),
    ],
)
def test_a_preview_tells_how_long_sending_takes(spec: dict[str, Any], expected: str) -> None:
    half = {"next": 50, "scanned": 50, "phase": "Finished", "reason": "DryRunFinished"}
    one = tally(0, 50, matched=40, skipped={"LoopCap": 5, "SelectorError": 9}, updated_at=NOW + 1_000, **half)
    other = tally(1, 50, matched=35, updated_at=NOW + 2_000, **half)
    status = replay_status(replay(mode="DryRun", **spec), seen(job={}, tallies=(one, other)), None)
    assert status["estimatedDuration"] == expected
    applied = replay_status(replay(**spec), seen(job={}, tallies=(one, other)), None)
    assert "estimatedDuration" not in applied


def test_redis_ids_are_too_large_for_a_window() -> None:
    assert progress_counts((tally(0, 1 << 100),))["window"] == []


def test_what_remains_of_a_stream_is_not_known_until_nothing_does() -> None:
    assert progress_counts((tally(0, 1 << 100),))["remaining"] == 0
    assert "remaining" not in progress_counts((tally(0, 1 << 100, next=7),))


def test_how_fast_it_goes_and_when_it_ends_is_told_while_it_runs() -> None:
    one = tally(0, 1_000, next=300, scanned=300, updated_at=NOW + 10_000)
    other = tally(1, 1_000, next=100, scanned=100, updated_at=NOW + 4_000)
    status = replay_status(replay(), seen(job={}, tallies=(one, other)), None)
    assert (status["lettersPerSecond"], status["remaining"]) == (40, 1_600)
    assert status["estimatedCompletionTime"] == times.render(NOW + 50_000)[:19] + "Z"
    again = replay().model_copy(update={"status": type(replay().status).model_validate(status)})
    ended = replay_status(again, seen(job={}, tallies=(one.evolve(phase="Failed"), other)), None)
    assert not {"lettersPerSecond", "estimatedCompletionTime"} & ended.keys()


CANARY = {"canary": {"steps": [1, 100], "wait": "5s"}}


@pytest.mark.parametrize(
    ("spec", "more", "began", "expected"),
    [
        ({}, {}, -2_000, (20, 60)),
        ({}, {}, None, (20, 60)),
        ({}, {}, 5_000, None),  # it was suspended: since then is not known what was done when
        ({"suspend": True}, {}, -2_000, None),
        (CANARY, {"phase": "Waiting"}, -2_000, None),
        ({"verify": {}}, {"phase": "Verifying"}, -2_000, None),
        (CANARY, {"replayed": 300}, -2_000, (40, 40)),  # two waits of five seconds are no work
        (CANARY, {"replayed": 50}, -2_000, (26, 50)),
        (CANARY | {"mode": "DryRun"}, {}, -2_000, (20, 60)),
        ({"canary": {"steps": [1], "wait": "20s"}}, {"replayed": 1}, -2_000, None),  # the wait is just to begin
    ],
)
def test_only_time_at_work_counts_for_the_pace(spec: Any, more: Any, began: int | None, expected: Any) -> None:
    one = tally(0, 1_200, next=400, scanned=400, updated_at=NOW + 20_000, **more)
    old = {"lettersPerSecond": 9, "estimatedCompletionTime": "2026-11-16T00:00:00Z"}
    job = {"status": {} if began is None else {"startTime": times.render(NOW + began)}}
    status = replay_status(replay(status=old, **spec), seen(job=job, tallies=(one,)), None)
    told = (status.get("lettersPerSecond"), status.get("estimatedCompletionTime"))
    ends = expected and times.render((NOW + expected[1] * 1_000) // 1_000 * 1_000)
    assert told == ((expected[0], ends) if expected else (None, None))


def test_what_cannot_go_back_is_said_with_what_helps() -> None:
    found = first_finding(REPLAY_CHECKS, replay(), seen(queue=pinned("cronsumer")))
    assert found is not None
    assert found.message == (
        "Letters of dialect cronsumer do not name the topic they came from; "
        "set spec.dead.origin of DeadLetterQueue orders."
    )
    found = first_finding(REPLAY_CHECKS, replay(canary={"steps": [1]}, verify={}), seen(queue=pinned("watermill")))
    assert found is not None
    assert found.message == (
        "spec.canary: letters of dialect watermill do not name the offset they came from, so those that fail again "
        "cannot be recognised; create a Replay without canary and verify."
    )
