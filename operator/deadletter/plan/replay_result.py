"""How a Replay ended: by the ledger's tallies first, else by its Job and the last words of its pod."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from deadletter.api.replays import Replay
from deadletter.core import times
from deadletter.core.reasons import Reason
from deadletter.plan.facts import ReplayFacts

MAX_WINDOW_PARTITIONS = 1000  # partitions told in a status
PROGRESS_READ_TIMEOUT_MS = 30_000  # three sweeps; a broker that is gone keeps no Replay from its end for longer
NOT_SENT_NOTE = "What was sent is settled; the other letters are still in the dead box."
LEFT_OPEN = {
    Reason.NoOrigin: "name no origin that exists (set spec.dead.origin of the queue, or spec.to)",
    Reason.TransformError: "cannot be mended by spec.transform and stay as they are",
    Reason.LoopCap: "were replayed as often as spec.maxReplays allows and stay",
    Reason.TooLarge: "exceed what the target takes and stay",
}
SKIPS = LEFT_OPEN | {Reason.AlreadySettled: "were settled before", Reason.Expired: "are gone or never were"}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Well or badly, and why."""

    succeeded: bool
    reason: Reason
    message: str = ""
    counts: dict[str, Any] = field(default_factory=dict)


def replay_result(replay: Replay, facts: ReplayFacts) -> ReplayResult | None:
    """How it ended; None: it goes on."""
    phases = {tally.phase for tally in facts.progress}
    if "Failed" in phases:
        tally = next(tally for tally in facts.progress if tally.phase == "Failed")
        return ReplayResult(False, _reason(tally.reason, Reason.DeliveryFailed), tally.message or _message(facts))
    if phases == {"Finished"}:
        return _finished(replay, facts)
    return _of_job(replay, facts)


def _finished(replay: Replay, facts: ReplayFacts) -> ReplayResult:
    matched = sum(tally.matched for tally in facts.progress)
    done = sum(tally.replayed + tally.archived + tally.discarded for tally in facts.progress)
    skipped = sum_counts(tally.skipped for tally in facts.progress)
    left = {why: skipped[why] for why in LEFT_OPEN if why in skipped}
    if left and not done and replay.spec.mode == "Apply":
        most = max(left, key=lambda why: left[why])
        return ReplayResult(False, Reason.OriginUnknown if most is Reason.NoOrigin else most, _summary(replay, matched, skipped))
    return ReplayResult(True, _good(replay, done), _summary(replay, matched, skipped))


def _summary(replay: Replay, matched: int, skipped: Mapping[str, int]) -> str:
    """What was done, or would be, and what became of the other letters, the most frequent reason first."""
    left = sorted(((skipped[why], text) for why, text in SKIPS.items() if why in skipped), reverse=True)
    verb = {"Republish": "replayed", "Archive": "archived"}.get(replay.spec.action, "discarded")
    form = "would be" if replay.spec.mode == "DryRun" else "were"
    taken = matched - sum(count for count, _ in left)
    parts = [f"{taken} of {matched} letters {form} {verb}"] if matched else ["no letter matched"]
    parts += [f"{count} {text}" for count, text in left]
    if failed := skipped.get(Reason.SelectorError):
        parts.append(f"spec.select.where cannot be evaluated for {failed} letters, so it does not select them")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _of_job(replay: Replay, facts: ReplayFacts) -> ReplayResult | None:
    said = read_termination_message(_last(facts))
    if _condition(facts, "Complete") and said:
        told = message_counts(said)
        matched, skipped = told.get("matched", 0), told.get("skippedBy", {})
        good = _reason(str(said.get("reason")), _good(replay, matched))
        return ReplayResult(True, good, _summary(replay, matched, skipped), told)
    failed = _condition(facts, "Failed")
    if failed is None or is_progress_pending(facts):
        return None
    told = _counted_by_then(said, facts)
    if failed.get("reason") == "DeadlineExceeded":
        sentence = f"It took longer than {replay.spec.active_deadline}. {NOT_SENT_NOTE}"
        return ReplayResult(False, Reason.DeadlineExceeded, sentence, told)
    reason = _reason(str(said.get("reason", "")), Reason.NoProgress)
    sentence = str(failed.get("message", ""))
    if reason is Reason.NoProgress and facts.failed_pods:
        sentence = f"{facts.failed_pods} pods ended without a step forward, the last one: {exit_summary(facts)}"
    return ReplayResult(False, reason, _message(facts) or sentence, told)


def _condition(facts: ReplayFacts, kind: str) -> Mapping[str, Any] | None:
    """The Job's condition of this type, if it is true."""
    conditions = ((facts.job or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if (one["type"], one.get("status")) == (kind, "True")), None)


def is_progress_pending(facts: ReplayFacts) -> bool:
    """Did the Job fail just now, so that its last steps are in no reading yet?"""
    failed = _condition(facts, "Failed") or {}
    if facts.queue is None or facts.connection is None or not failed.get("lastTransitionTime"):
        return False
    return abs(facts.now - times.parse(failed["lastTransitionTime"])) < PROGRESS_READ_TIMEOUT_MS


def _counted_by_then(said: dict[str, Any], facts: ReplayFacts) -> dict[str, Any]:
    """What the last pod counted; how far it came only the ledger tells, and of the window the ledger tells more."""
    known = ("remaining", "window") if facts.progress else ("remaining",)
    return {name: count for name, count in message_counts(said).items() if name not in known}


def exit_summary(facts: ReplayFacts) -> str:
    """How the newest pod ended: in its own words, else in the node's."""
    if not facts.pod_exits:
        return ""
    last = facts.pod_exits[-1]
    return _message(facts) or f"exit code {last.code}{f', {last.reason}' if last.reason else ''}."


def _last(facts: ReplayFacts) -> str:
    return facts.pod_exits[-1].message if facts.pod_exits else ""


def _good(replay: Replay, taken: int) -> Reason:
    if replay.spec.mode == "DryRun":
        return Reason.DryRunFinished
    return Reason.AllReplayed if taken else Reason.NothingMatched


def _reason(text: str, otherwise: Reason) -> Reason:
    return Reason.__members__.get(text, otherwise)


def _message(facts: ReplayFacts) -> str:
    return str(read_termination_message(_last(facts)).get("message", ""))[:1024]


def read_termination_message(text: str) -> dict[str, Any]:
    """A termination message as a mapping; anything else says nothing."""
    try:
        said = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
    return said if isinstance(said, dict) else {}


def message_counts(said: dict[str, Any]) -> dict[str, Any]:
    """The counts of a pod's last words, as the status tells them."""
    if not isinstance(said.get("matched"), int):
        return {}
    skipped = {str(name): int(count) for name, count in (said.get("skipped") or {}).items()}
    return {
        **{name: int(said.get(name) or 0) for name in ("matched", "replayed", "archived", "discarded")},
        "failedAgain": int(said.get("failed_again") or 0),
        "remaining": 0,
        "skipped": sum(skipped.values()),
        "skippedBy": skipped,
        "groups": largest_groups_matched({str(name): int(count) for name, count in (said.get("groups") or {}).items()}),
        "targets": largest_targets({str(name): int(count) for name, count in (said.get("targets") or {}).items()}),
        "bytes": int(said.get("bytes") or 0),
        "samples": [str(sample) for sample in said.get("samples") or ()][:10],
        "window": window_fields(tuple(map(int, span)) for span in said.get("window") or () if span[2] < 1 << 53),
    }


def sum_counts(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name, of all partitions together."""
    total: dict[str, int] = {}
    for one in counted:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def window_fields(spans: Iterable[tuple[int, ...]]) -> list[dict[str, int]]:
    """The frozen window, bounded."""
    return [{"partition": span[0], "start": span[1], "end": span[2]} for span in spans][:MAX_WINDOW_PARTITIONS]


def largest_groups_matched(named: dict[str, int]) -> list[dict[str, Any]]:
    """The ten largest groups of what matched."""
    return [{"fingerprint": name, "letters": count} for name, count in _largest(named)]


def largest_targets(named: dict[str, int]) -> list[dict[str, Any]]:
    """The ten places that most letters go to."""
    return [{"name": name, "letters": count} for name, count in _largest(named)]


def _largest(named: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(named.items(), key=lambda item: (-item[1], item[0]))[:10]
