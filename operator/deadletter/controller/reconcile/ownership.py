"""Records of the boxes that a queue owns: written before a box is created, so that a crash leaves none without one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.brokers.errors import BoxAppeared, BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.types import BoxState
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import confirm_current, still_exists
from deadletter.core.box_spec import BoxSpec
from deadletter.core.reasons import Reason
from deadletter.kube import QUEUES
from deadletter.plan.findings import Finding
from deadletter.plan.ownership import (
    TAKE_OVER_ANNOTATION,
    boxes_to_delete,
    conflict_finding,
    judge_ownership,
    new_intents,
    only_ids_differ,
    records_after,
    without_intents,
)

log = structlog.stdlib.get_logger("ownership")


async def record_ownership(
    context: OperatorContext, queue: DeadLetterQueue, redis: bool, states: Mapping[str, BoxState]
) -> tuple[OwnedBox, ...] | Finding:
    """The records of the queue's boxes, stored; or the conflict, and then nothing may be touched."""
    ids = ids_of(states)
    judged = judge_ownership(queue, redis, ids)
    if judged.conflicts:  # the informer may be older than the records of our own last pass
        queue = DeadLetterQueue.from_body(await confirm_current(context, queue))
        judged = judge_ownership(queue, redis, ids)
    if judged.conflicts:
        return conflict_finding(queue, redis, judged)
    if not only_ids_differ(queue.status.owned_boxes, judged.records, ids):
        await _store_records(context, queue, judged.records)
    if TAKE_OVER_ANNOTATION in queue.metadata.annotations:
        await _remove_take_over(context, queue, judged.taken_over)
    return judged.records


async def _store_records(context: OperatorContext, queue: DeadLetterQueue, records: tuple[OwnedBox, ...]) -> None:
    status = {"ownedBoxes": [one.to_wire() for one in records]}
    patch: dict[str, Any] = {"metadata": {"uid": queue.uid}, "status": status}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, patch, "status")
    context.informers[QUEUES].upsert(written)


async def _remove_take_over(context: OperatorContext, queue: DeadLetterQueue, taken: tuple[str, ...]) -> None:
    """The annotation works once: a box that others create later is not taken over by it."""
    patch: dict[str, Any] = {"metadata": {"uid": queue.uid, "annotations": {TAKE_OVER_ANNOTATION: None}}}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, patch)
    context.informers[QUEUES].upsert(written)
    if taken:
        log.info("boxes taken over", boxes=list(taken))
        message = f"Taken over as asked by {TAKE_OVER_ANNOTATION}: {', '.join(taken)}."
        key = ObjectKey(QUEUES, queue.namespace, queue.name)
        await statuses.create_event(context, statuses.build_event(key, queue, Reason.BoxesTakenOver, message, "Normal"))


@contextmanager
def track_created_boxes(
    context: OperatorContext,
    queue: DeadLetterQueue,
    planned: tuple[BoxSpec, ...],
    records: tuple[OwnedBox, ...],
    states: Mapping[str, BoxState],
) -> Iterator[None]:
    """Inside, the planned boxes are created and added to `states`; at the end the records are kept for the status."""
    existed, refused = set(states), set[str]()
    try:
        yield
    except BrokerError as error:
        if isinstance(error, BoxAppeared):
            withdrawn = new_intents(queue.status.owned_boxes, records) - set(states)
            records = without_intents(queue.status.owned_boxes, records, withdrawn)
        elif not isinstance(error, BrokerUnreachable | BoxMissing):  # after these a box may have been created
            refused = {box.name for box in planned} - set(states)
        raise
    finally:
        after = records_after(records, existed, ids_of(states), refused)
        if still_exists(context, queue):  # else they would be written for another queue of its name
            context.observed.owned_boxes[(queue.namespace, queue.name)] = after


def boxes_to_drop(queue: DeadLetterQueue, redis: bool, states: Mapping[str, BoxState]) -> tuple[str, ...] | Finding:
    """The boxes that are deleted with the queue; those of others stay."""
    judged = judge_ownership(queue, redis, ids_of(states))
    if judged.conflicts:
        log.warning("boxes of others are kept", boxes=list(judged.conflicts))
    return boxes_to_delete(queue, judged, ids_of(states))


def ids_of(states: Mapping[str, BoxState]) -> dict[str, str]:
    """The ids of boxes by name."""
    return {name: state.id for name, state in states.items()}
