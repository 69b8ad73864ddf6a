"""Remove the traces of deleted Replays from the ledgers."""

import asyncio

import structlog

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.facts import parse
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.controller.state.dependents import BY_QUEUE, ref_name
from deadletter.controller.state.informer import is_same_object
from deadletter.kube import QUEUES, REPLAYS, ApiError, Body

COLLECT_INTERVAL_S = 10.0
FORBIDDEN = 403
log = structlog.stdlib.get_logger("garbage")


async def collect_forever(context: OperatorContext) -> None:
    """Clean the ledgers of deleted Replays every few seconds."""
    while True:
        await asyncio.sleep(COLLECT_INTERVAL_S)
        deleted, context.deleted_replays = context.deleted_replays, []
        for body in deleted:
            if is_preview_in_use(context, body):
                context.deleted_replays.append(body)
            else:
                await clean_ledger(context, body)


def is_preview_in_use(context: OperatorContext, body: Body) -> bool:
    """True if a Replay that has not ended uses this one's selection; its pod may have to read it again."""
    meta = body["metadata"]
    return any(
        ref_name(other, "previewRef") == meta["name"] and not (other.get("status") or {}).get("completionTime")
        for other in context.informers[REPLAYS].by_index(BY_QUEUE, meta["namespace"], ref_name(body, "queueRef"))
    )


async def clean_ledger(context: OperatorContext, body: Body) -> None:
    """Remove the selection, the produced offsets and the progress of a deleted Replay from its queue's ledger."""
    namespace, uid = body["metadata"]["namespace"], body["metadata"]["uid"]
    queue = parse(DeadLetterQueue, context.informers[QUEUES].get(namespace, ref_name(body, "queueRef")))
    pooled = context.pool.get(namespace, queue.spec.broker_ref.name) if queue else None
    if queue is None or pooled is None or not (body.get("status") or {}).get("startTime"):
        return
    if queue.spec.redrive.strategy == "Disabled":
        return
    try:
        if not await still_exists(context, body):
            await with_timeout(pooled.broker.delete_replay_records(queue.boxes(pooled.spec.is_redis).ledger, uid))
    except ApiError as error:
        if error.status != FORBIDDEN:  # the rights were deleted with the namespace, and so was the queue
            context.deleted_replays.append(body)
    except BrokerError as error:
        log.info("cleaning the ledger of a deleted Replay failed", namespace=namespace, reason=type(error).__name__)


async def still_exists(context: OperatorContext, body: Body) -> bool:
    """Read the Replay before its traces are removed: without rights on it, it looks as if it were deleted."""
    live = await context.kube.get(REPLAYS, body["metadata"]["namespace"], body["metadata"]["name"])
    return live is not None and is_same_object(live, body)
