"""Watch over the offsets of a courier's consumer group: report that they are lost, and resume where a user says."""

import structlog

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_spec import Source
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.lost_offsets import EARLIEST, LATEST, RESUME_FROM_ANNOTATION, StartPosition, offsets_lost_error
from deadletter.brokers.types import ResumedGroup
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile.boxes import to_finding
from deadletter.controller.reconcile.facts import confirm_current
from deadletter.controller.reconcile.status import build_event, create_event
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.core import times
from deadletter.core.condition_types import COURIER_AVAILABLE
from deadletter.core.reasons import Reason
from deadletter.kube import QUEUES
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import consumer_group_status

MAX_SHOWN_CHARACTERS = 64
log = structlog.stdlib.get_logger("group_offsets")


async def check_group_offsets(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Carry out the resume-from annotation, then report a group that has started and has no offsets.

    The broker is asked only while no courier is available: a running one keeps the offsets from expiring.
    """
    requested, source = queue.metadata.annotations.get(RESUME_FROM_ANNOTATION), queue.spec.source
    has_started = consumer_group_status(queue, facts) is not None
    if facts.connection is None or (requested is None and (not has_started or _is_courier_available(facts))):
        return None
    try:
        broker = (await context.pool.get_or_open(facts.connection)).broker
        if requested is not None:
            await _consume_annotation(context, queue, requested, broker, has_started)
        if source is None or not has_started or not await with_timeout(broker.is_group_lost(source.name, source.group)):
            return None
    except BrokerError as error:
        return to_finding(error)
    return Finding(Reason.GroupOffsetsLost, str(offsets_lost_error(source.name, source.group)), True, COURIER_AVAILABLE)


def _is_courier_available(facts: QueueFacts) -> bool:
    return bool(((facts.deployment or {}).get("status") or {}).get("availableReplicas"))


async def _consume_annotation(
    context: OperatorContext, queue: DeadLetterQueue, requested: str, broker: Broker, has_started: bool
) -> None:
    """Resume the group, create an Event, and remove the annotation.

    If the operator is killed in between, the next pass finds offsets and only removes the annotation.
    """
    live = await confirm_current(context, queue)
    if (live["metadata"].get("annotations") or {}).get(RESUME_FROM_ANNOTATION) != requested:
        return  # consumed or changed meanwhile; the change causes another pass
    reason, message = await _resume(queue.spec.source if has_started else None, requested, broker)
    log.info("resume-from annotation consumed", reason=reason.value, message=message)
    level = "Normal" if reason is Reason.GroupResumed else "Warning"
    key = ObjectKey(QUEUES, queue.namespace, queue.name)
    await create_event(context, build_event(key, queue, reason, message, level))
    meta = {"uid": queue.uid, "annotations": {RESUME_FROM_ANNOTATION: None}}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    context.informers[QUEUES].upsert(written)


async def _resume(source: Source | None, requested: str, broker: Broker) -> tuple[Reason, str]:
    removed = f"{RESUME_FROM_ANNOTATION}={requested[:MAX_SHOWN_CHARACTERS]} was removed"
    start = _parse_start(requested)
    if start is None:
        accepted = "Earliest, Latest and a time such as 2026-11-16T00:00:00Z"
        return Reason.ResumeIgnored, f"{removed}: accepted are {accepted}."
    if source is None:
        return Reason.ResumeIgnored, f"{removed}: no consumer group of this queue has started yet."
    resumed = await with_timeout(broker.resume_group(source.name, source.group, start))
    if resumed is None:
        unchanged = f"consumer group {source.group} has its offsets of {source.name}, so nothing was changed"
        return Reason.ResumeIgnored, f"{removed}: {unchanged}."
    position = requested if isinstance(start, str) else times.render(start)
    return (
        Reason.GroupResumed,
        f"Consumer group {source.group} resumes in {source.name} from {position}{_describe_counts(resumed)}.",
    )


def _describe_counts(resumed: ResumedGroup) -> str:
    if resumed.remaining_messages is None or resumed.skipped_messages is None:
        return ""
    return f": {resumed.remaining_messages} messages will be delivered, {resumed.skipped_messages} are skipped"


def _parse_start(text: str) -> StartPosition | None:
    if text == EARLIEST:
        return EARLIEST
    if text == LATEST:
        return LATEST
    try:
        return times.parse(text)
    except ValueError:
        return None
