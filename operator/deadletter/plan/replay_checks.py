"""Checks of a Replay's spec and of the objects it names; the reconciler and the webhook run the same chain."""

from deadletter.api.replays import Replay
from deadletter.core.condition_types import BOXES_READY, SUCCEEDED
from deadletter.core.reasons import Reason
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_checks import (
    check_expression,
    check_origin_offset,
    check_origin_topic,
    fields_are_supported,
    missing_reference,
    service_exists,
)


def expression_compiles(replay: Replay, _: ReplayFacts) -> Finding | None:
    """Require that `spec.select.where` compiles and returns a bool."""
    return check_expression("spec.select.where", replay.spec.select.where) if replay.spec.select.where else None


def queue_exists(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Require that `spec.queueRef` exists."""
    if facts.queue is None:
        return missing_reference("DeadLetterQueue", replay.spec.queue_ref.name, Reason.QueueNotFound)
    return None


def queue_allows_apply(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Reject an Apply for a queue whose redrive strategy is Disabled: nothing is written to its boxes."""
    if facts.queue and facts.queue.spec.redrive.strategy == "Disabled" and replay.spec.mode == "Apply":
        message = (
            f"DeadLetterQueue {facts.queue.name} only observes (redrive Disabled). "
            "Use mode DryRun, or set spec.redrive.strategy of the queue to Manual."
        )
        return Finding(Reason.RedriveDisabled, message, False)
    return None


def origin_is_known(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Require an origin topic if letters go to it, and origin offsets if failures after the replay are counted."""
    queue, spec = facts.queue, replay.spec
    if queue is None or spec.action != "Republish" or (spec.to is None and queue.shape == "Delivered"):
        return None
    found = check_origin_topic(queue) if spec.to is None or spec.to.origin else None
    counting = [name for name, part in (("canary", spec.canary), ("verify", spec.verify)) if part is not None]
    if found is None and counting and not (spec.to and (spec.to.service_ref or spec.to.queue_ref)):
        found = check_origin_offset(queue, f"spec.{counting[0]}", f"create a Replay without {' and '.join(counting)}")
    return found


def target_is_not_own_box(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Reject the queue's dead box, retry box and ledger as the target."""
    to, queue, connection = replay.spec.to, facts.queue, facts.connection
    if to is None or to.name is None or queue is None or connection is None:
        return None
    boxes = queue.boxes(connection.spec.is_redis)
    if to.name not in (boxes.dead, boxes.retry, boxes.ledger):
        return None
    message = (
        f"spec.to.name: {to.name} belongs to DeadLetterQueue {queue.name} itself. Name another box or omit spec.to."
    )
    return Finding(Reason.InvalidSpec, message, False)


def target_exists(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Require that `spec.to.queueRef` exists, has a source, and that its BrokerConnection exists."""
    to = replay.spec.to
    if to is None or to.queue_ref is None:
        return None
    if facts.target is None:
        return missing_reference("DeadLetterQueue", to.queue_ref.name, Reason.QueueNotFound)
    if facts.target.spec.source is None:
        message = (
            f"spec.to.queueRef: DeadLetterQueue {facts.target.name} has no spec.source. Name a queue with a source."
        )
        return Finding(Reason.InvalidSpec, message, False)
    if facts.target_connection is None:
        name = facts.target.spec.broker_ref.name
        return missing_reference("BrokerConnection", name, Reason.BrokerConnectionNotFound)
    return None


def preview_is_finished(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Require that `spec.previewRef` is a finished DryRun of the same queue and of letters in the same state."""
    ref, preview = replay.spec.preview_ref, facts.preview
    if ref is None:
        return None
    if preview is None:
        return missing_reference("Replay", ref.name, Reason.ReplayNotFound)
    if preview.spec.mode != "DryRun" or preview.spec.queue_ref != replay.spec.queue_ref:
        message = f"spec.previewRef: Replay {ref.name} is not a DryRun of the same queue. Name one that is."
        return Finding(Reason.InvalidSpec, message, False)
    state = preview.spec.select.state
    if state != replay.spec.select.state:
        message = f"spec.select.state must be {state}, as in Replay {ref.name}, the preview."
        return Finding(Reason.InvalidSpec, message, False)
    succeeded = preview.status.condition(SUCCEEDED)
    if succeeded is not None and succeeded.status == "False":
        message = f"spec.previewRef: the DryRun {ref.name} failed. Create another preview and name it."
        return Finding(Reason.InvalidSpec, message, False)
    if succeeded is None or succeeded.status != "True":
        message = f"Replay {ref.name}, the preview, has not finished; this Replay starts when it has."
        return Finding(Reason.Pending, message, True)
    return None


def queue_is_ready(replay: Replay, facts: ReplayFacts) -> Finding | None:
    """Require that the boxes of the queue are ready; the courier need not run."""
    boxes = facts.queue.status.condition(BOXES_READY) if facts.queue else None
    if boxes is not None and boxes.status == "True" and facts.connection is not None:
        return None
    why = f" ({boxes.reason})" if boxes and boxes.status == "False" else ""
    name = replay.spec.queue_ref.name
    message = (
        f"DeadLetterQueue {name} is not ready{why}; see its conditions. This Replay starts when BoxesReady is True."
    )
    return Finding(Reason.QueueNotReady, message, True)


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
