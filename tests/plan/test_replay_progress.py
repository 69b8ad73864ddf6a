"""Counts, speed and estimates of a Replay."""

from typing import Any

import pytest

from deadletter.core import times
from deadletter.plan.replay_status import progress_counts, replay_status
from tests.plan.builders import NOW, partition_progress, replay, replay_facts


def test_counts_are_summed_over_partitions() -> None:
    one = partition_progress(
        0, 10, next=4, matched=3, replayed=2, skipped={"LoopCap": 1}, groups={"ab": 3}, samples=("0-1",)
    )
    one = one.evolve(targets={"orders": 2}, bytes=100)
    other = partition_progress(
        1, 20, matched=5, replayed=5, failed_again=1, groups={"ab": 1, "cd": 4}, samples=("1-7",)
    )
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
        ({}, "3s"),  # 100 letters scanned in 2 s, 70 of them to send, at half that speed
        ({"rate": {"perSecond": 10}}, "7s"),
        ({"rate": {"perSecond": 10}, "canary": {"steps": [1, 10], "wait": "30s"}, "verify": {"window": "2m"}}, "3m7s"),
        ({"action": "Discard"}, "3s"),
    ],
)
def test_a_preview_estimates_the_duration_of_the_apply(spec: dict[str, Any], expected: str) -> None:
    half = {"next": 50, "scanned": 50, "phase": "Finished", "reason": "DryRunFinished"}
    one = partition_progress(
        0, 50, matched=40, skipped={"LoopCap": 5, "SelectorError": 9}, updated_at=NOW + 1_000, **half
    )
    other = partition_progress(1, 50, matched=35, updated_at=NOW + 2_000, **half)
    status = replay_status(replay(mode="DryRun", **spec), replay_facts(job={}, progress=(one, other)), None)
    assert status["estimatedDuration"] == expected
    applied = replay_status(replay(**spec), replay_facts(job={}, progress=(one, other)), None)
    assert "estimatedDuration" not in applied


def test_redis_entry_ids_have_no_window() -> None:
    assert progress_counts((partition_progress(0, 1 << 100),))["window"] == []


def test_the_remaining_entries_of_a_stream_are_known_only_when_none_remain() -> None:
    assert progress_counts((partition_progress(0, 1 << 100),))["remaining"] == 0
    assert "remaining" not in progress_counts((partition_progress(0, 1 << 100, next=7),))


def test_a_running_replay_shows_its_speed_and_its_estimated_end() -> None:
    one = partition_progress(0, 1_000, next=300, scanned=300, updated_at=NOW + 10_000)
    other = partition_progress(1, 1_000, next=100, scanned=100, updated_at=NOW + 4_000)
    status = replay_status(replay(), replay_facts(job={}, progress=(one, other)), None)
    assert (status["lettersPerSecond"], status["remaining"]) == (40, 1_600)
    assert status["estimatedCompletionTime"] == times.render(NOW + 50_000)[:19] + "Z"
    subject = replay().model_copy(update={"status": type(replay().status).model_validate(status)})
    ended = replay_status(subject, replay_facts(job={}, progress=(one.evolve(phase="Failed"), other)), None)
    assert not {"lettersPerSecond", "estimatedCompletionTime"} & ended.keys()


CANARY = {"canary": {"steps": [1, 100], "wait": "5s"}}


@pytest.mark.parametrize(
    ("spec", "more", "began", "expected"),
    [
        ({}, {}, -2_000, (20, 60)),
        ({}, {}, None, (20, 60)),
        ({}, {}, 5_000, None),  # it was suspended, for an unknown time
        ({"suspend": True}, {}, -2_000, None),
        (CANARY, {"phase": "Waiting"}, -2_000, None),
        ({"verify": {}}, {"phase": "Verifying"}, -2_000, None),
        (CANARY, {"replayed": 300}, -2_000, (40, 40)),  # without two canary waits of five seconds
        (CANARY, {"replayed": 50}, -2_000, (26, 50)),
        (CANARY | {"mode": "DryRun"}, {}, -2_000, (20, 60)),
        ({"canary": {"steps": [1], "wait": "20s"}}, {"replayed": 1}, -2_000, None),  # the canary wait begins now
    ],
)
def test_waiting_time_does_not_count_for_the_speed(spec: Any, more: Any, began: int | None, expected: Any) -> None:
    one = partition_progress(0, 1_200, next=400, scanned=400, updated_at=NOW + 20_000, **more)
    old = {"lettersPerSecond": 9, "estimatedCompletionTime": "2026-11-16T00:00:00Z"}
    job = {"status": {} if began is None else {"startTime": times.render(NOW + began)}}
    status = replay_status(replay(status=old, **spec), replay_facts(job=job, progress=(one,)), None)
    shown = (status.get("lettersPerSecond"), status.get("estimatedCompletionTime"))
    ends = expected and times.render((NOW + expected[1] * 1_000) // 1_000 * 1_000)
    assert shown == ((expected[0], ends) if expected else (None, None))
