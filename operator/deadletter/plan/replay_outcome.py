"""Decide whether a Replay has ended, and how: by the progress in the ledger, else by its Job and its last pod."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from deadletter.api.replays import Replay
from deadletter.core import names, times
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import finish_reason
from deadletter.plan.conditions import MAX_MESSAGE_CHARACTERS
from deadletter.plan.facts import ReplayFacts

MAX_WINDOW_PARTITIONS = 1000
MAX_LISTED = 10
# Offsets above 2^53 are ids of Redis entries, which JSON numbers cannot hold exactly.
MAX_JSON_INTEGER = 1 << 53
# Three sweeps. A broker that is gone must not keep a Replay from ending for longer.
PROGRESS_READ_TIMEOUT_MS = 30_000
DEADLINE_NOTE = "Letters that were sent are settled. Create another Replay for those that are still in the dead box."
RETRY_NOTE = "Correct the cause, then create another Replay for the letters that are left."
LEFT_OPEN = {
    Reason.NoOrigin: "name no origin that exists (set spec.dead.origin of the queue, or spec.to)",
    Reason.TransformError: "could not be changed by spec.transform and stay in the dead box",
    Reason.LoopCap: "were replayed as often as spec.maxReplays allows and stay in the dead box",
    Reason.TooLarge: "are larger than the target accepts and stay in the dead box",
}
SKIPPED = LEFT_OPEN | {Reason.AlreadySettled: "were settled before", Reason.Expired: "are deleted or never existed"}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a Replay ended, and the counts that only its last pod reported."""

    succeeded: bool
    reason: Reason
    message: str = ""
    counts: dict[str, Any] = field(default_factory=dict)


def replay_result(replay: Replay, facts: ReplayFacts) -> ReplayResult | None:
    """Return how the Replay ended; None if it has not ended."""
    phases = {partition.phase for partition in facts.progress}
    if "Failed" in phases:
        failed = next(partition for partition in facts.progress if partition.phase == "Failed")
        reason = _reason(failed.reason, Reason.DeliveryFailed)
        return ReplayResult(False, reason, _failure_message(replay, reason, failed.message, _last_message(facts)))
    if phases == {"Finished"}:
        return _result_of_progress(replay, facts)
    return _result_of_job(replay, facts)


def _result_of_progress(replay: Replay, facts: ReplayFacts) -> ReplayResult:
    matched = sum(partition.matched for partition in facts.progress)
    done = sum(partition.processed for partition in facts.progress)
    skipped = sum_counts(partition.skipped for partition in facts.progress)
    left = {reason: skipped[reason] for reason in LEFT_OPEN if reason in skipped}
    summary = _summary(replay, matched, skipped)
    if left and not done and replay.spec.mode == "Apply":
        most = max(left, key=lambda reason: left[reason])
        return ReplayResult(False, Reason.OriginUnknown if most is Reason.NoOrigin else most, summary)
    return ReplayResult(True, _success_reason(replay, matched, done), summary)


def _summary(replay: Replay, matched: int, skipped: Mapping[str, int]) -> str:
    """Return how many letters were, or would be, replayed, and why others were not, the most frequent reason first."""
    left = sorted(((skipped[reason], text) for reason, text in SKIPPED.items() if reason in skipped), reverse=True)
    verb = {"Republish": "replayed", "Archive": "archived"}.get(replay.spec.action, "discarded")
    form = "would be" if replay.spec.mode == "DryRun" else "were"
    taken = matched - sum(count for count, _ in left)
    parts = [f"{taken} of {matched} letters {form} {verb}"] if matched else ["no letter matched"]
    parts += [f"{count} {text}" for count, text in left]
    if failed := skipped.get(Reason.SelectorError):
        parts.append(f"spec.select.where cannot be evaluated for {failed} letters, so it does not select them")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _result_of_job(replay: Replay, facts: ReplayFacts) -> ReplayResult | None:
    reported = read_termination_message(facts.pod_exits[-1].message) if facts.pod_exits else {}
    if _job_condition(facts, "Complete") and reported:
        counts = message_counts(reported)
        matched, skipped = counts.get("matched", 0), counts.get("skippedBy", {})
        done = sum(counts.get(name, 0) for name in ("replayed", "archived", "discarded"))
        reason = _success_reason(replay, matched, done)
        return ReplayResult(True, reason, _summary(replay, matched, skipped), counts)
    failed = _job_condition(facts, "Failed")
    if failed is None or is_progress_pending(facts):
        return None
    counts = _counts_beyond_progress(reported, facts)
    if failed.get("reason") == "DeadlineExceeded":
        message = f"The Replay took longer than spec.activeDeadline, {replay.spec.active_deadline}. {DEADLINE_NOTE}"
        return ReplayResult(False, Reason.DeadlineExceeded, message, counts)
    reason = _reason(str(reported.get("reason", "")), Reason.NoProgress)
    message = str(failed.get("message", ""))
    if reason is Reason.NoProgress and facts.failed_pods:
        return ReplayResult(False, reason, _no_progress_message(replay, facts), counts)
    return ReplayResult(False, reason, _failure_message(replay, reason, _last_message(facts), message), counts)


def job_name(replay: Replay) -> str:
    """Return the name of the Replay's Job."""
    return names.child_name(replay.name, "replay")


def _failure_message(replay: Replay, reason: Reason, *reported: str) -> str:
    """Return the first message that is not empty; without one, the meaning of the reason and what to do."""
    unreported = f"{reason.meaning} See the logs of Job {job_name(replay)}. {RETRY_NOTE}"
    return next((one for one in reported if one.strip()), unreported)


def _no_progress_message(replay: Replay, facts: ReplayFacts) -> str:
    return (
        f"{facts.failed_pods} pods of Job {job_name(replay)} failed in a row without progress, the last one: "
        f"{exit_summary(facts).removesuffix('.')}. {RETRY_NOTE}"
    )


def _job_condition(facts: ReplayFacts, kind: str) -> Mapping[str, Any] | None:
    """Return the Job's condition of this type if it is true."""
    conditions = ((facts.job or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if (one["type"], one.get("status")) == (kind, "True")), None)


def is_progress_pending(facts: ReplayFacts) -> bool:
    """True if the Job failed so recently that no sweep may have read its last progress."""
    failed = _job_condition(facts, "Failed") or {}
    if facts.queue is None or facts.connection is None or not failed.get("lastTransitionTime"):
        return False
    # abs: the clock of the control plane may be ahead.
    return abs(facts.now - times.parse(failed["lastTransitionTime"])) < PROGRESS_READ_TIMEOUT_MS


def _counts_beyond_progress(reported: dict[str, Any], facts: ReplayFacts) -> dict[str, Any]:
    """Return the counts that the last pod knows better than the ledger: all but `remaining` and the window."""
    from_ledger = ("remaining", "window") if facts.progress else ("remaining",)
    return {name: count for name, count in message_counts(reported).items() if name not in from_ledger}


def exit_summary(facts: ReplayFacts) -> str:
    """Return how the newest pod ended: its termination message, else its exit code and the kubelet's reason."""
    if not facts.pod_exits:
        return ""
    last = facts.pod_exits[-1]
    return _last_message(facts) or f"exit code {last.code}{f', {last.reason}' if last.reason else ''}."


def _success_reason(replay: Replay, matched: int, done: int) -> Reason:
    is_dry_run = replay.spec.mode == "DryRun"
    return Reason.DryRunFinished if is_dry_run else finish_reason(replay.spec.action, matched, done)


def _reason(text: str, otherwise: Reason) -> Reason:
    return Reason.__members__.get(text, otherwise)


def _last_message(facts: ReplayFacts) -> str:
    message = facts.pod_exits[-1].message if facts.pod_exits else ""
    return str(read_termination_message(message).get("message", ""))[:MAX_MESSAGE_CHARACTERS]


def read_termination_message(text: str) -> dict[str, Any]:
    """Parse a worker's termination message; text that is not a JSON object gives an empty mapping."""
    try:
        message = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
    return message if isinstance(message, dict) else {}


def message_counts(message: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a termination message as the fields of the status."""
    if not isinstance(message.get("matched"), int):
        return {}
    skipped = _counts_of(message, "skipped")
    return {
        **{name: int(message.get(name) or 0) for name in ("matched", "replayed", "archived", "discarded")},
        "failedAgain": int(message.get("failed_again") or 0),
        "remaining": 0,
        "skipped": sum(skipped.values()),
        "skippedBy": skipped,
        "groups": group_fields(_counts_of(message, "groups")),
        "targets": target_fields(_counts_of(message, "targets")),
        "bytes": int(message.get("bytes") or 0),
        "samples": [str(sample) for sample in message.get("samples") or ()][:MAX_LISTED],
        "window": window_fields(
            tuple(map(int, span)) for span in message.get("window") or () if span[2] < MAX_JSON_INTEGER
        ),
    }


def _counts_of(message: dict[str, Any], name: str) -> dict[str, int]:
    return {str(key): int(count) for key, count in (message.get(name) or {}).items()}


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def window_fields(spans: Iterable[tuple[int, ...]]) -> list[dict[str, int]]:
    """Return the frozen window as the status shows it, of at most MAX_WINDOW_PARTITIONS partitions."""
    return [{"partition": span[0], "start": span[1], "end": span[2]} for span in spans][:MAX_WINDOW_PARTITIONS]


def group_fields(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the ten largest failure groups of the letters that matched."""
    return [{"fingerprint": name, "letters": count} for name, count in _largest(counts)]


def target_fields(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the ten targets that most letters go to."""
    return [{"name": name, "letters": count} for name, count in _largest(counts)]


def _largest(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_LISTED]
