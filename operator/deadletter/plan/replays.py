"""Checks and status of a Replay."""

from collections.abc import Iterable, Sequence
from typing import Any

from deadletter.api.replays import Replay
from deadletter.core import durations, times
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress
from deadletter.plan.conditions import ConditionUpdate, condition, merge_conditions
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_checks import check_expression, fields_are_supported, missing_reference, check_origin_offset, check_origin_topic
from deadletter.plan.queue_status import render_second
from deadletter.plan.replay_result import ReplayResult, replay_result, exit_summary, largest_groups_matched, is_progress_pending, sum_counts, largest_targets, window_fields

SPEED_FIELDS = ("estimatedCompletionTime", "lettersPerSecond")
SUMMED_FIELDS = ("matched", "replayed", "archived", "discarded", "bytes")
WAITING_OR_RUNNING = frozenset(
    {Reason.Queued, Reason.Suspended, Reason.Freezing, Reason.Running, Reason.Waiting, Reason.Verifying}
    | {Reason.ApplyRefused}  # it may begin; only the API server does not let it
)
PHASE_REASONS = {"Freezing": Reason.Freezing, "Waiting": Reason.Waiting, "Verifying": Reason.Verifying}


def expression_compiles(replay: Replay, _: ReplayFacts) -> Finding | None:
    """The selection is CEL that says yes or no."""
    return check_expression("spec.select.where", replay.spec.select.where) if replay.spec.select.where else None


def queue_exists(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """The queue must be known."""
    return None if facts.queue else missing_reference("DeadLetterQueue", replay.spec.queue_ref.name, Reason.QueueNotFound)


def queue_allows_apply(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """An observed queue is never written to."""
    if facts.queue and facts.queue.spec.redrive.strategy == "Disabled" and replay.spec.mode == "Apply":
        sentence = f"DeadLetterQueue {facts.queue.name} only observes (redrive Disabled): a DryRun is all it allows."
        return Finding(Reason.RedriveDisabled, sentence, False)
    return None


def origin_is_known(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Letters go to their origin, and are watched, only where their dialect tells it."""
    queue, spec = facts.queue, replay.spec
    if queue is None or spec.action != "Republish" or (spec.to is None and queue.shape == "Delivered"):
        return None
    found = check_origin_topic(queue) if spec.to is None or spec.to.origin else None
    watched = [name for name, part in (("canary", spec.canary), ("verify", spec.verify)) if part is not None]
    if found is None and watched and not (spec.to and (spec.to.service_ref or spec.to.queue_ref)):
        found = check_origin_offset(queue, f"spec.{watched[0]}", f"create a Replay without {' and '.join(watched)}")
    return found


def target_is_not_own_box(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """What the queue keeps its letters and its books in is no target."""
    to, queue, connection = replay.spec.to, facts.queue, facts.connection
    if to is None or to.name is None or queue is None or connection is None:
        return None
    boxes = queue.boxes(connection.spec.is_redis)
    if to.name not in (boxes.dead, boxes.retry, boxes.ledger):
        return None
    sentence = f"spec.to.name: {to.name} is a box of DeadLetterQueue {queue.name} itself; name another, or leave out"
    return Finding(Reason.InvalidSpec, f"{sentence} spec.to.", False)


def target_exists(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Another queue's source must be there, and be one."""
    to = replay.spec.to
    if to is None or to.queue_ref is None:
        return None
    if facts.target is None:
        return missing_reference("DeadLetterQueue", to.queue_ref.name, Reason.QueueNotFound)
    if facts.target.spec.source is None:
        return Finding(Reason.InvalidSpec, f"spec.to.queueRef: {facts.target.name} has no source to send to.", False)
    if facts.target_connection is None:
        return missing_reference("BrokerConnection", facts.target.spec.broker_ref.name, Reason.BrokerConnectionNotFound)
    return None


def preview_is_finished(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """A preview is a finished DryRun of the same queue."""
    named = replay.spec.preview_ref
    if named is None:
        return None
    if facts.preview is None:
        return missing_reference("Replay", named.name, Reason.ReplayNotFound)
    if facts.preview.spec.mode != "DryRun" or facts.preview.spec.queue_ref != replay.spec.queue_ref:
        return Finding(Reason.InvalidSpec, f"spec.previewRef: {named.name} is no DryRun of the same queue.", False)
    state = facts.preview.spec.select.state
    if state != replay.spec.select.state:
        return Finding(Reason.InvalidSpec, f"spec.select.state must be {state}, as in Replay {named.name}.", False)
    done = facts.preview.status.condition("Succeeded")
    if done is not None and done.status == "False":
        sentence = f"spec.previewRef: the DryRun of {named.name} failed; create another preview."
        return Finding(Reason.InvalidSpec, sentence, False)
    if done is None or done.status != "True":
        return Finding(Reason.Pending, f"Replay {named.name} has not finished its DryRun yet.", True)
    return None


def service_exists(_: Replay, facts: ReplayFacts) -> Finding | None:
    """The Service that letters go to is there."""
    absent = next((name for name, exists in facts.services.items() if not exists), None)
    return missing_reference("Service", absent, Reason.ServiceNotFound) if absent else None


def queue_is_ready(_: Replay, facts: ReplayFacts) -> Finding | None:
    """The boxes are there; whether the courier runs does not matter."""
    boxes = facts.queue.status.condition("BoxesReady") if facts.queue else None
    if boxes is None or boxes.status != "True" or facts.connection is None:
        why = f": {boxes.reason}" if boxes and boxes.status == "False" else ""
        return Finding(Reason.QueueNotReady, f"The queue is not ready{why}.", True)
    return None


REPLAY_CHECKS = (
    fields_are_supported,
    expression_compiles,
    queue_exists,
    queue_allows_apply,
    origin_is_known,
    target_is_not_own_box,
    target_exists,
    preview_is_finished,
    service_exists,
    queue_is_ready,
)


def is_finished(replay: Replay) -> bool:
    """It ran and ended; it is never run again."""
    return replay.status.completion_time is not None


def replay_status(replay: Replay, facts: ReplayFacts, found: Finding | None) -> dict[str, Any]:
    """The whole status. What was counted before stays when nothing newer is known."""
    old = replay.status.to_wire()
    kept = {key: value for key, value in old.items() if key not in ("conditions", "observedGeneration", *SPEED_FIELDS)}
    ending = None if found else replay_result(replay, facts)
    status = kept | progress_counts(facts.progress) | (ending.counts if ending else {})
    status["groups"] = add_error_types(status.get("groups", ()), replay, facts)
    status["observedGeneration"] = replay.generation
    if facts.job is not None and "startTime" not in status:
        status["startTime"] = render_second(facts.now)
    if ending is not None:
        status["completionTime"] = render_second(facts.now)
        if facts.progress and ending.succeeded and replay.spec.mode == "DryRun":
            status["estimatedDuration"] = durations.render(estimated_duration_ms(replay, facts.progress))
    elif facts.progress:
        status |= speed_fields(replay, facts)
    said = replay_conditions(replay, facts, found, ending)
    conditions = merge_conditions(replay.status.conditions, said, replay.generation, facts.now)
    status["conditions"] = [one.to_wire() for one in conditions]
    return status


def add_error_types(found: Iterable[dict[str, Any]], replay: Replay, facts: ReplayFacts) -> list[dict[str, Any]]:
    """The ledger counts fingerprints alone; what they stand for the queue knows as long as such letters lie open."""
    known = (*(facts.queue.status.groups if facts.queue else ()), *replay.status.groups)
    told = {one.fingerprint: {"errorType": one.error_type, "category": one.category} for one in known if one.category}
    nothing = {"errorType": "", "category": ""}
    return [one | told.get(one["fingerprint"], nothing) for one in found]


def replay_conditions(replay: Replay, facts: ReplayFacts, found: Finding | None, ending: ReplayResult | None) -> list[ConditionUpdate]:
    """What there is to say, Succeeded first."""
    held = replay.spec.suspend and ending is None
    paused = condition("Suspended", held, Reason.Suspended if held else Reason.AsExpected)
    if ending is not None:
        return [condition("Succeeded", ending.succeeded, ending.reason, ending.message), paused, *_rest(ending)]
    reason, message = _progress(replay, facts, found)
    stuck = found is not None and not found.is_transient
    return [
        condition("Succeeded", False if stuck else None, reason, message),
        paused,
        condition("Reconciling", not stuck, reason, message),
        condition("Stalled", stuck, reason if stuck else Reason.AsExpected, message if stuck else ""),
    ]


def _rest(ending: ReplayResult) -> list[ConditionUpdate]:
    bad = condition("Stalled", True, ending.reason, ending.message)
    fine = condition("Stalled", False, Reason.AsExpected)
    return [condition("Reconciling", False, ending.reason), fine if ending.succeeded else bad]


def _progress(replay: Replay, facts: ReplayFacts, found: Finding | None) -> tuple[Reason, str]:
    if found is not None:
        return found.reason, found.message
    if replay.spec.suspend:
        return Reason.Suspended, "spec.suspend is true."
    if facts.blocking_replay is not None:
        return Reason.Queued, f"Replay {facts.blocking_replay} of the same queue goes first."
    if is_progress_pending(facts):
        how = f" The last pod: {exit_summary(facts)}" if facts.pod_exits else ""
        return Reason.Running, f"Its Job failed, and what it did is counted.{how}"
    if facts.failed_pods:
        return Reason.Running, f"A pod ended and another goes on: {exit_summary(facts)}"
    if facts.pod_problem:
        return Reason.Pending, facts.pod_problem
    phase = next((tally.phase for tally in facts.progress if tally.phase in PHASE_REASONS), "")
    return PHASE_REASONS.get(phase, Reason.Running if facts.progress else Reason.Freezing), ""


def progress_counts(tallies: Iterable[PartitionProgress]) -> dict[str, Any]:
    """All partitions together, exactly as the ledger has them."""
    every = sorted(tallies, key=lambda tally: tally.span.partition)
    if not every:
        return {}
    out: dict[str, Any] = {name: sum(getattr(tally, name) for tally in every) for name in SUMMED_FIELDS}
    skipped = sum_counts(tally.skipped for tally in every)
    return (out | remaining_letters(every)) | {
        "failedAgain": sum(tally.failed_again for tally in every),
        "skipped": sum(skipped.values()),
        "skippedBy": skipped,
        "groups": largest_groups_matched(sum_counts(tally.groups for tally in every)),
        "targets": largest_targets(sum_counts(tally.targets for tally in every)),
        "samples": [sample for tally in every for sample in tally.samples][:10],
        "window": window_fields((tally.span.partition, tally.span.start, tally.span.end) for tally in every if counts_offsets(tally)),
    }


def remaining_letters(tallies: Iterable[PartitionProgress]) -> dict[str, int]:
    """What is still to be looked at; how many entries of a stream lie between two ids nobody knows."""
    left = [(tally, max(0, tally.span.end - max(tally.next, tally.span.start))) for tally in tallies]
    return {"remaining": sum(count for _, count in left)} if all(counts_offsets(one) or not count for one, count in left) else {}


def counts_offsets(tally: PartitionProgress) -> bool:
    """Is it a span of offsets? Redis ids are larger than any number of JSON."""
    return tally.span.end < 1 << 53


def speed_fields(replay: Replay, facts: ReplayFacts) -> dict[str, Any]:
    """How fast it goes while it works, and when it will end at this pace; nothing where that is not known."""
    began = min(tally.now for tally in facts.progress)
    latest = max(tally.updated_at for tally in facts.progress)
    seen = sum(tally.scanned for tally in facts.progress)
    left = sum(max(0, tally.span.end - tally.next) for tally in facts.progress if counts_offsets(tally))
    took = latest - began - _waited(replay, facts.progress)
    if took < 1000 or not seen or replay.spec.suspend or _stood_still(facts, began):
        return {}
    speed = seen * 1000 // took
    end = {"estimatedCompletionTime": render_second(latest + left * 1000 // speed)} if speed and left else {}
    return {"lettersPerSecond": speed} | end


def _waited(replay: Replay, tallies: Iterable[PartitionProgress]) -> int:
    """Milliseconds of the canary's waits so far."""
    canary, sent = replay.spec.canary, sum(tally.replayed for tally in tallies)
    return sum(canary.wait_ms for step in canary.steps if sent >= step) if canary else 0


def _stood_still(facts: ReplayFacts, began: int) -> bool:
    """Does it watch what comes back, or was its Job resumed since the freeze? How long it rested nobody knows."""
    resumed = ((facts.job or {}).get("status") or {}).get("startTime")  # set anew each time
    watches = any(tally.phase in ("Waiting", "Verifying") for tally in facts.progress)
    return watches or (resumed is not None and times.parse(resumed) > began)


def estimated_duration_ms(replay: Replay, tallies: Sequence[PartitionProgress]) -> int:
    """Milliseconds that an Apply of this preview takes, in whole seconds: it goes at half the pace, or at its rate."""
    skipped = sum(count for one in tallies for name, count in one.skipped.items() if name != Reason.SelectorError)
    letters = sum(one.matched for one in tallies) - skipped
    took = max(one.updated_at for one in tallies) - min(one.now for one in tallies)
    guess = 2 * letters * max(0, took) // max(1, sum(one.scanned for one in tallies))
    rate, canary, verify = replay.spec.rate, replay.spec.canary, replay.spec.verify
    if rate is not None and rate.per_second is not None:
        guess = max(guess, letters * 1000 // rate.per_second)
    waits = (len(canary.steps) * canary.wait_ms if canary else 0) + (verify.window_ms if verify else 0)
    return min(durations.MAX_MS, -(-(guess + waits) // 1000) * 1000)
