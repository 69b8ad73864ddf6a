"""The offsets of a courier's consumer group: report that they are lost, and resume where a person says."""

import structlog

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_spec import Source
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.group_offsets import EARLIEST, LATEST, RESUME_FROM_ANNOTATION, StartPosition, offsets_lost_error
from deadletter.brokers.types import ResumedGroup
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import boxes, status
from deadletter.controller.reconcile.facts import confirm_current
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.core import times
from deadletter.core.condition_types import COURIER_AVAILABLE
from deadletter.core.reasons import Reason
from deadletter.kube import QUEUES
from deadletter.plan.queue_status import consumer_group_status
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding

MAX_SHOWN_CHARACTERS = 64
log = structlog.stdlib.get_logger("offsets")


async def check_group_offsets(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Carry out `deadletter.dev/resume-from`, then report a started group that has no offsets.

    The broker is asked only while no courier is available: one that is at work keeps the offsets alive.
    """
    asked, source = queue.metadata.annotations.get(RESUME_FROM_ANNOTATION), queue.spec.source
    has_started = consumer_group_status(queue, facts) is not None
    if facts.connection is None or (asked is None and (not has_started or _is_courier_available(facts))):
        return None
    try:
        broker = (await context.pool.get_or_open(facts.connection)).broker
        if asked is not None:
            await _consume_annotation(context, queue, asked, broker, has_started)
        if source is None or not has_started or not await with_timeout(broker.is_group_lost(source.name, source.group)):
            return None
    except BrokerError as error:
        return boxes.to_finding(error)
    return Finding(Reason.GroupOffsetsLost, str(offsets_lost_error(source.name, source.group)), True, COURIER_AVAILABLE)


def _is_courier_available(facts: QueueFacts) -> bool:
    return bool(((facts.deployment or {}).get("status") or {}).get("availableReplicas"))


async def _consume_annotation(context: OperatorContext, queue: DeadLetterQueue, asked: str, broker: Broker, has_started: bool) -> None:
    """Resume, tell it in an Event, take the annotation away. Killed in between, the next pass finds offsets."""
    live = await confirm_current(context, queue)
    if (live["metadata"].get("annotations") or {}).get(RESUME_FROM_ANNOTATION) != asked:
        return  # consumed or changed meanwhile: another pass looks at it
    reason, message = await _resume(queue.spec.source if has_started else None, asked, broker)
    log.info("resume-from consumed", reason=reason.value, message=message)
    level = "Normal" if reason is Reason.GroupResumed else "Warning"
    key = ObjectKey(QUEUES, queue.namespace, queue.name)
    await status.create_event(context, status.build_event(key, queue, reason, message, level))
    meta = {"uid": queue.uid, "annotations": {RESUME_FROM_ANNOTATION: None}}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    context.informers[QUEUES].upsert(written)


async def _resume(source: Source | None, asked: str, broker: Broker) -> tuple[Reason, str]:
    said, start = f"{RESUME_FROM_ANNOTATION}={asked[:MAX_SHOWN_CHARACTERS]}", _parse_start(asked)
    if start is None:
        accepted = "Earliest, Latest and a time such as 2026-11-16T00:00:00Z"
        return Reason.ResumeIgnored, f"{said} was removed: accepted are {accepted}."
    if source is None:
        return Reason.ResumeIgnored, f"{said} was removed: no consumer group of this queue has started yet."
    resumed = await with_timeout(broker.resume_group(source.name, source.group, start))
    if resumed is None:
        sentence = f"consumer group {source.group} has its offsets of {source.name}, so nothing was changed"
        return Reason.ResumeIgnored, f"{said} was removed: {sentence}."
    where = asked if isinstance(start, str) else times.render(start)
    return (
        Reason.GroupResumed,
        f"Consumer group {source.group} goes on in {source.name} from {where}{_describe_counts(resumed)}.",
    )


def _describe_counts(resumed: ResumedGroup) -> str:
    if resumed.remaining_messages is None or resumed.skipped_messages is None:
        return ""
    return f": {resumed.remaining_messages} messages are to be delivered, {resumed.skipped_messages} before them are passed over"


def _parse_start(text: str) -> StartPosition | None:
    if text == EARLIEST:
        return EARLIEST
    if text == LATEST:
        return LATEST
    try:
        return times.parse(text)
    except ValueError:
        return None
