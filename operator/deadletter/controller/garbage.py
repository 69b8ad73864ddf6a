"""What is left behind: traces of deleted Replays in ledgers, Secrets that changed or that nobody names any more."""

import asyncio
from collections.abc import Iterable

import structlog

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import Operation, Thing
from deadletter.controller.reconcile.facts import read
from deadletter.controller.state.broker_pool import within
from deadletter.controller.state.dependents import QUEUE, named
from deadletter.controller.state.informer import same
from deadletter.kube import CONNECTIONS, QUEUES, REPLAYS, ApiError, Body
from deadletter.plan.worker_manifests import secrets_of

EVERY_SECONDS = 10.0
FORBIDDEN = 403  # our rights went with the namespace
log = structlog.stdlib.get_logger("cleaning")


async def clean_for_ever(operation: Operation) -> None:
    """Forget Replays that went, now and then."""
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        gone, operation.gone = operation.gone, []
        for body in gone:
            if is_taken(operation, body):
                operation.gone.append(body)
            else:
                await forget_replay(operation, body)


async def read_for_ever(operation: Operation) -> None:
    """Look at the Secrets now and then; a task of its own, because no broker may keep it waiting."""
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        used = used_secrets(operation)
        operation.secrets.forget_unused(used.keys())
        for (namespace, name), users in used.items():
            if await has_changed(operation, namespace, name):
                for thing in users:
                    operation.work.wake(thing)


async def has_changed(operation: Operation, namespace: str, name: str) -> bool:
    """Does a Secret hold something else than when it was last read? It is read again when that is long ago."""
    before = operation.secrets.known(namespace, name)
    try:
        await operation.secrets.fact(namespace, name)
    except ApiError:
        return False
    return before is not None and before != operation.secrets.known(namespace, name)


def is_taken(operation: Operation, body: Body) -> bool:
    """Does a Replay that has not ended take the selection of this one? Its pod may have to read it again."""
    meta = body["metadata"]
    return any(
        named(other, "previewRef") == meta["name"] and not (other.get("status") or {}).get("completionTime")
        for other in operation.snapshots[REPLAYS].by(QUEUE, meta["namespace"], named(body, "queueRef"))
    )


async def forget_replay(operation: Operation, body: Body) -> None:
    """Remove selection, produced and tally of a deleted Replay from its queue's ledger."""
    namespace, uid = body["metadata"]["namespace"], body["metadata"]["uid"]
    queue = read(DeadLetterQueue, operation.snapshots[QUEUES].get(namespace, named(body, "queueRef")))
    line = operation.pool.known(namespace, queue.spec.broker_ref.name) if queue else None
    if queue is None or line is None or not (body.get("status") or {}).get("startTime"):
        return
    if queue.spec.redrive.strategy == "Disabled":
        return
    try:
        if not await is_there(operation, body):
            await within(line.broker.delete_replay_records(queue.boxes(line.spec.is_redis).ledger, uid))
    except ApiError as error:
        operation.gone += [body] if error.status != FORBIDDEN else []
    except BrokerError as error:
        log.info("traces of a Replay stay in the ledger", namespace=namespace, reason=type(error).__name__)


async def is_there(operation: Operation, body: Body) -> bool:
    """Nothing is destroyed by hearsay: what we may not see for a while looks as if it were deleted."""
    live = await operation.cluster.get(REPLAYS, body["metadata"]["namespace"], body["metadata"]["name"])
    return live is not None and same(live, body)


def used_secrets(operation: Operation) -> dict[tuple[str, str], list[Thing]]:
    """Every Secret that a connection, its open line or a delivery names, and who does."""
    used: dict[tuple[str, str], list[Thing]] = {}

    def use(thing: Thing, names: Iterable[str]) -> None:
        for name in names:
            used.setdefault((thing.namespace, name), []).append(thing)

    for key, line in operation.pool.all():  # a queue may still drop its boxes when the connection is gone
        use(Thing(CONNECTIONS, *key), line.spec.secret_names)
    for body in operation.snapshots[CONNECTIONS].all():
        if connection := read(BrokerConnection, body):
            use(Thing(CONNECTIONS, connection.namespace, connection.name), connection.spec.secret_names)
    for body in operation.snapshots[QUEUES].all():
        queue = read(DeadLetterQueue, body) if "delivery" in body["spec"] else None
        connection = read(BrokerConnection, operation.snapshots[CONNECTIONS].get(*_broker(body))) if queue else None
        if queue and connection:
            use(Thing(QUEUES, queue.namespace, queue.name), secrets_of(queue, connection))
    return used


def _broker(body: Body) -> tuple[str, str]:
    return body["metadata"]["namespace"], named(body, "brokerRef")
