"""Store which boxes a queue owns. A record is written before its box is created, so that a crash loses none."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.brokers.errors import BoxAppeared, BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.types import BoxState
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile.facts import confirm_current, still_exists
from deadletter.controller.reconcile.status import build_event, create_event
from deadletter.core.box_types import BoxSpec
from deadletter.core.reasons import Reason
from deadletter.kube import QUEUES
from deadletter.plan.findings import Finding
from deadletter.plan.managed_boxes import (
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
    context: OperatorContext, queue: DeadLetterQueue, is_redis: bool, states: Mapping[str, BoxState]
) -> tuple[OwnedBox, ...] | Finding:
    """Store and return the ownership records, or return the conflict; then no box of the queue may be changed."""
    ids = ids_of(states)
    ownership = judge_ownership(queue, is_redis, ids)
    if ownership.conflicts:  # the informer may be older than the records that our last pass wrote
        queue = DeadLetterQueue.from_body(await confirm_current(context, queue))
        ownership = judge_ownership(queue, is_redis, ids)
    if ownership.conflicts:
        return conflict_finding(queue, is_redis, ownership)
    if not only_ids_differ(queue.status.owned_boxes, ownership.records, ids):
        await _store_records(context, queue, ownership.records)
    if TAKE_OVER_ANNOTATION in queue.metadata.annotations:
        await _remove_take_over(context, queue, ownership.taken_over)
    return ownership.records


async def _store_records(context: OperatorContext, queue: DeadLetterQueue, records: tuple[OwnedBox, ...]) -> None:
    status = {"ownedBoxes": [record.to_wire() for record in records]}
    patch: dict[str, Any] = {"metadata": {"uid": queue.uid}, "status": status}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, patch, "status")
    context.informers[QUEUES].upsert(written)


async def _remove_take_over(context: OperatorContext, queue: DeadLetterQueue, taken_over: tuple[str, ...]) -> None:
    """Remove the take-over annotation, so that it does not apply to a box that others create later."""
    patch: dict[str, Any] = {"metadata": {"uid": queue.uid, "annotations": {TAKE_OVER_ANNOTATION: None}}}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, patch)
    context.informers[QUEUES].upsert(written)
    if taken_over:
        log.info("boxes taken over", boxes=list(taken_over))
        message = f"The queue took over boxes as the annotation {TAKE_OVER_ANNOTATION} asked: {', '.join(taken_over)}."
        key = ObjectKey(QUEUES, queue.namespace, queue.name)
        await create_event(context, build_event(key, queue, Reason.BoxesTakenOver, message, "Normal"))


@contextmanager
def track_created_boxes(
    context: OperatorContext,
    queue: DeadLetterQueue,
    planned: tuple[BoxSpec, ...],
    records: tuple[OwnedBox, ...],
    states: Mapping[str, BoxState],
) -> Iterator[None]:
    """Record which boxes the block creates, also if it fails, for the status that this pass writes.

    The block adds each box that it created to `states`.
    """
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
        if still_exists(context, queue):  # otherwise they would be written to a successor of the same name
            context.observed.owned_boxes[(queue.namespace, queue.name)] = after


def owned_boxes_to_delete(
    queue: DeadLetterQueue, is_redis: bool, states: Mapping[str, BoxState]
) -> tuple[str, ...] | Finding:
    """Return the boxes that are deleted with the queue, or a finding if that needs a confirmation."""
    ids = ids_of(states)
    ownership = judge_ownership(queue, is_redis, ids)
    if ownership.conflicts:
        log.warning("boxes that the queue does not own are kept", boxes=list(ownership.conflicts))
    return boxes_to_delete(queue, ownership, ids)


def ids_of(states: Mapping[str, BoxState]) -> dict[str, str]:
    """Return the ids of boxes by name."""
    return {name: state.id for name, state in states.items()}
