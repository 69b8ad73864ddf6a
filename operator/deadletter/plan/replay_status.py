"""Compute the status of a Replay from facts and findings."""

from collections.abc import Iterable, Sequence
from typing import Any

from deadletter.api.replays import Replay
from deadletter.core import durations, times
from deadletter.core.condition_types import FINISHED, RECONCILING, STALLED, SUCCEEDED, SUSPENDED
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress
from deadletter.plan.conditions import ConditionUpdate, condition, merge_conditions
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import Finding
from deadletter.plan.replay_outcome import (
    MAX_JSON_INTEGER,
    MAX_LISTED,
    ReplayResult,
    exit_summary,
    group_fields,
    is_progress_pending,
    job_name,
    replay_result,
    sum_counts,
    target_fields,
    window_fields,
)

SPEED_FIELDS = ("estimatedCompletionTime", "lettersPerSecond")
SUMMED_FIELDS = ("matched", "replayed", "archived", "discarded", "bytes")
MIN_MEASURED_MS = 1000
# Reasons of a Replay that runs, or that may run once the Replays before it have ended.
RUNNABLE_REASONS = frozenset(
    {Reason.Queued, Reason.Suspended, Reason.Freezing, Reason.Running, Reason.Waiting, Reason.Verifying}
    | {Reason.ApplyRefused}  # only the API server refuses its Job
)
SUSPENDED_MESSAGE = "spec.suspend is true; set it to false to go on."
RUNNING_MESSAGES = {
    Reason.Freezing: "status.window is being frozen: letters that are buried from now on are not part of this Replay.",
    Reason.Running: "Letters of the window are being processed; status.remaining shows what is left.",
    Reason.Waiting: "A canary step waits for letters that fail again, for spec.canary.wait.",
    Reason.Verifying: "All letters are sent; those that fail again are counted for spec.verify.window.",
}
PHASE_REASONS = {"Freezing": Reason.Freezing, "Waiting": Reason.Waiting, "Verifying": Reason.Verifying}


def is_finished(replay: Replay) -> bool:
    """True if the Replay has ended; it never runs again."""
    return replay.status.completion_time is not None


def replay_status(replay: Replay, facts: ReplayFacts, found: Finding | None) -> dict[str, Any]:
    """Return the whole status. Counts of the last status stay until newer ones are known."""
    old = replay.status.to_wire()
    kept = {key: value for key, value in old.items() if key not in ("conditions", "observedGeneration", *SPEED_FIELDS)}
    result = None if found else replay_result(replay, facts)
    status = kept | progress_counts(facts.progress) | (result.counts if result else {})
    status["groups"] = add_error_types(status.get("groups", ()), replay, facts)
    status["observedGeneration"] = replay.generation
    if facts.job is not None and "startTime" not in status:
        status["startTime"] = times.render_second(facts.now)
    if result is not None:
        status["completionTime"] = times.render_second(facts.now)
        if facts.progress and result.succeeded and replay.spec.mode == "DryRun":
            status["estimatedDuration"] = durations.render(estimated_duration_ms(replay, facts.progress))
    elif facts.progress:
        status |= speed_fields(replay, facts)
    updates = replay_conditions(replay, facts, found, result)
    conditions = merge_conditions(replay.status.conditions, updates, replay.generation, facts.now)
    status["conditions"] = [one.to_wire() for one in conditions]
    return status


def add_error_types(groups: Iterable[dict[str, Any]], replay: Replay, facts: ReplayFacts) -> list[dict[str, Any]]:
    """Add error type and category to groups.

    The ledger counts fingerprints only. The queue's status explains them while such letters are open, later the last
    status of the Replay does.
    """
    known = (*(facts.queue.status.groups if facts.queue else ()), *replay.status.groups)
    types = {one.fingerprint: {"errorType": one.error_type, "category": one.category} for one in known if one.category}
    unknown = {"errorType": "", "category": ""}
    return [one | types.get(one["fingerprint"], unknown) for one in groups]


def replay_conditions(
    replay: Replay, facts: ReplayFacts, found: Finding | None, result: ReplayResult | None
) -> list[ConditionUpdate]:
    """Return all conditions of a Replay, Succeeded first."""
    is_suspended = replay.spec.suspend and result is None
    suspended = condition(
        SUSPENDED,
        is_suspended,
        Reason.Suspended if is_suspended else Reason.AsExpected,
        SUSPENDED_MESSAGE if is_suspended else "",
    )
    if result is not None:
        return [
            condition(SUCCEEDED, result.succeeded, result.reason, result.message),
            condition(FINISHED, True, result.reason),
            suspended,
            condition(RECONCILING, False, result.reason),
            _stalled(not result.succeeded, result.reason, result.message),
        ]
    reason, message = _current_reason(replay, facts, found)
    is_stalled = found is not None and not found.is_transient
    return [
        condition(SUCCEEDED, False if is_stalled else None, reason, message),
        condition(FINISHED, is_stalled, reason, "" if is_stalled else message),
        suspended,
        condition(RECONCILING, not is_stalled, reason, message),
        _stalled(is_stalled, reason, message),
    ]


def _stalled(holds: bool, reason: Reason, message: str) -> ConditionUpdate:
    return condition(STALLED, True, reason, message) if holds else condition(STALLED, False, Reason.AsExpected)


def _current_reason(replay: Replay, facts: ReplayFacts, found: Finding | None) -> tuple[Reason, str]:
    """Return why a Replay has not ended yet."""
    if found is not None:
        return found.reason, found.message
    if replay.spec.suspend:
        return Reason.Suspended, SUSPENDED_MESSAGE
    if facts.blocking_replay is not None:
        return (
            Reason.Queued,
            f"Replay {facts.blocking_replay} of the same queue runs first; this one starts when it ends.",
        )
    if is_progress_pending(facts):
        last_pod = f" The last pod: {exit_summary(facts)}" if facts.pod_exits else ""
        return Reason.Running, f"Job {job_name(replay)} failed, and its last progress is being read.{last_pod}"
    if facts.failed_pods:
        message = f"A pod of Job {job_name(replay)} failed and another one continues: {exit_summary(facts)}"
        return Reason.Running, message
    if facts.pod_problem:
        return Reason.Pending, facts.pod_problem
    phase = next((partition.phase for partition in facts.progress if partition.phase in PHASE_REASONS), "")
    reason = PHASE_REASONS.get(phase, Reason.Running if facts.progress else Reason.Freezing)
    return reason, RUNNING_MESSAGES[reason]


def progress_counts(progress: Iterable[PartitionProgress]) -> dict[str, Any]:
    """Return the counts of all partitions together, as the ledger has them."""
    partitions = sorted(progress, key=lambda partition: partition.span.partition)
    if not partitions:
        return {}
    spans = [partition.span for partition in partitions if has_offsets(partition)]
    skipped = sum_counts(partition.skipped for partition in partitions)
    sums = {name: sum(getattr(partition, name) for partition in partitions) for name in SUMMED_FIELDS}
    return {
        **sums,
        **remaining_letters(partitions),
        "failedAgain": sum(partition.failed_again for partition in partitions),
        "skipped": sum(skipped.values()),
        "skippedBy": skipped,
        "groups": group_fields(sum_counts(partition.groups for partition in partitions)),
        "targets": target_fields(sum_counts(partition.targets for partition in partitions)),
        "samples": [sample for partition in partitions for sample in partition.samples][:MAX_LISTED],
        "window": window_fields((span.partition, span.start, span.end) for span in spans),
    }


def remaining_letters(partitions: Iterable[PartitionProgress]) -> dict[str, int]:
    """Return how much of the window is left to read; nothing if unknown.

    Between two ids of a stream there may be any number of entries.
    """
    left = [(one, max(0, one.span.end - max(one.next, one.span.start))) for one in partitions]
    if all(has_offsets(one) or not count for one, count in left):
        return {"remaining": sum(count for _, count in left)}
    return {}


def has_offsets(partition: PartitionProgress) -> bool:
    """True if the window of the partition is a range of Kafka offsets; ids of Redis entries are larger."""
    return partition.span.end < MAX_JSON_INTEGER


def speed_fields(replay: Replay, facts: ReplayFacts) -> dict[str, Any]:
    """Return how fast a running Replay reads and when it will end at this speed; nothing if that is not known."""
    began = min(partition.now for partition in facts.progress)
    latest = max(partition.updated_at for partition in facts.progress)
    scanned = sum(partition.scanned for partition in facts.progress)
    left = sum(max(0, one.span.end - one.next) for one in facts.progress if has_offsets(one))
    elapsed = latest - began - _canary_wait_ms(replay, facts.progress)
    if elapsed < MIN_MEASURED_MS or not scanned or replay.spec.suspend or _was_idle(facts, began):
        return {}
    per_second = scanned * 1000 // elapsed
    fields: dict[str, Any] = {"lettersPerSecond": per_second}
    if per_second and left:
        fields["estimatedCompletionTime"] = times.render_second(latest + left * 1000 // per_second)
    return fields


def _canary_wait_ms(replay: Replay, progress: Iterable[PartitionProgress]) -> int:
    """Return how long the canary has waited so far."""
    canary, sent = replay.spec.canary, sum(partition.replayed for partition in progress)
    return sum(canary.wait_ms for step in canary.steps if sent >= step) if canary else 0


def _was_idle(facts: ReplayFacts, began: int) -> bool:
    """True if the elapsed time contains waits of unknown length: it waits now, or was suspended since it began."""
    resumed = ((facts.job or {}).get("status") or {}).get("startTime")  # the Job controller sets it at every resume
    waits = any(partition.phase in ("Waiting", "Verifying") for partition in facts.progress)
    return waits or (resumed is not None and times.parse(resumed) > began)


def estimated_duration_ms(replay: Replay, progress: Sequence[PartitionProgress]) -> int:
    """Return how long an Apply of this preview takes, in whole seconds: half as fast as the DryRun, or at its rate."""
    skipped = sum(count for one in progress for name, count in one.skipped.items() if name != Reason.SelectorError)
    letters = sum(one.matched for one in progress) - skipped
    elapsed = max(one.updated_at for one in progress) - min(one.now for one in progress)
    sending = 2 * letters * max(0, elapsed) // max(1, sum(one.scanned for one in progress))
    rate, canary, verify = replay.spec.rate, replay.spec.canary, replay.spec.verify
    if rate is not None and rate.per_second is not None:
        sending = max(sending, letters * 1000 // rate.per_second)
    waits = (len(canary.steps) * canary.wait_ms if canary else 0) + (verify.window_ms if verify else 0)
    return min(durations.MAX_MS, -(-(sending + waits) // 1000) * 1000)
