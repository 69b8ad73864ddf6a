"""What is left behind: traces of deleted Replays in ledgers, Secrets that changed or that nobody names any more."""

import asyncio
from collections.abc import Iterable

import structlog

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile.facts import parse
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.controller.state.dependents import BY_QUEUE, ref_name
from deadletter.controller.state.informer import is_same_object
from deadletter.kube import CONNECTIONS, QUEUES, REPLAYS, ApiError, Body
from deadletter.plan.worker_manifests import worker_secret_names

COLLECT_INTERVAL_S = 10.0
FORBIDDEN = 403  # our rights went with the namespace
log = structlog.stdlib.get_logger("cleaning")


async def collect_forever(context: OperatorContext) -> None:
    """Forget Replays that went, now and then."""
    while True:
        await asyncio.sleep(COLLECT_INTERVAL_S)
        gone, context.deleted_replays = context.deleted_replays, []
        for body in gone:
            if is_preview_in_use(context, body):
                context.deleted_replays.append(body)
            else:
                await clean_ledger(context, body)


async def read_for_ever(context: OperatorContext) -> None:
    """Look at the Secrets now and then; a task of its own, because no broker may keep it waiting."""
    while True:
        await asyncio.sleep(COLLECT_INTERVAL_S)
        used = secret_users(context)
        context.secrets.forget_unused(used.keys())
        for (namespace, name), users in used.items():
            if await has_changed(context, namespace, name):
                for key in users:
                    context.workqueue.add(key)


async def has_changed(context: OperatorContext, namespace: str, name: str) -> bool:
    """Does a Secret hold something else than when it was last read? It is read again when that is long ago."""
    before = context.secrets.last_read(namespace, name)
    try:
        await context.secrets.fact(namespace, name)
    except ApiError:
        return False
    return before is not None and before != context.secrets.last_read(namespace, name)


def is_preview_in_use(context: OperatorContext, body: Body) -> bool:
    """Does a Replay that has not ended take the selection of this one? Its pod may have to read it again."""
    meta = body["metadata"]
    return any(
        ref_name(other, "previewRef") == meta["name"] and not (other.get("status") or {}).get("completionTime")
        for other in context.informers[REPLAYS].by_index(BY_QUEUE, meta["namespace"], ref_name(body, "queueRef"))
    )


async def clean_ledger(context: OperatorContext, body: Body) -> None:
    """Remove selection, produced and tally of a deleted Replay from its queue's ledger."""
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
        context.deleted_replays += [body] if error.status != FORBIDDEN else []
    except BrokerError as error:
        log.info("traces of a Replay stay in the ledger", namespace=namespace, reason=type(error).__name__)


async def still_exists(context: OperatorContext, body: Body) -> bool:
    """Nothing is destroyed by hearsay: what we may not see for a while looks as if it were deleted."""
    live = await context.kube.get(REPLAYS, body["metadata"]["namespace"], body["metadata"]["name"])
    return live is not None and is_same_object(live, body)


def secret_users(context: OperatorContext) -> dict[tuple[str, str], list[ObjectKey]]:
    """Every Secret that a connection, its open pooled or a delivery names, and who does."""
    used: dict[tuple[str, str], list[ObjectKey]] = {}

    def use(key: ObjectKey, names: Iterable[str]) -> None:
        for name in names:
            used.setdefault((key.namespace, name), []).append(key)

    for key, pooled in context.pool.items():  # a queue may still drop its boxes when the connection is gone
        use(ObjectKey(CONNECTIONS, *key), pooled.spec.secret_names)
    for body in context.informers[CONNECTIONS].all():
        if connection := parse(BrokerConnection, body):
            use(ObjectKey(CONNECTIONS, connection.namespace, connection.name), connection.spec.secret_names)
    for body in context.informers[QUEUES].all():
        queue = parse(DeadLetterQueue, body) if "delivery" in body["spec"] else None
        connection = parse(BrokerConnection, context.informers[CONNECTIONS].get(*_broker(body))) if queue else None
        if queue and connection:
            use(ObjectKey(QUEUES, queue.namespace, queue.name), worker_secret_names(queue, connection))
    return used


def _broker(body: Body) -> tuple[str, str]:
    return body["metadata"]["namespace"], ref_name(body, "brokerRef")
