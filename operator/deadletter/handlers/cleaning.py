"""What is left behind: traces of deleted Replays in ledgers, Secrets nobody names any more. Best effort."""

import asyncio

import structlog

from deadletter.api.brokerconnections import BrokerConnection
from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.cluster import CONNECTIONS, QUEUES, Body
from deadletter.handlers.gathering import read
from deadletter.handlers.neighbours import named
from deadletter.handlers.operation import Operation
from deadletter.handlers.pool import within
from deadletter.plan.couriers import secrets_of

EVERY_SECONDS = 10.0
log = structlog.stdlib.get_logger("cleaning")


async def clean_for_ever(operation: Operation) -> None:
    """Look now and then."""
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        gone, operation.gone = operation.gone, []
        for body in gone:
            await forget_replay(operation, body)
        operation.secrets.forget_unused(used_secrets(operation))


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
        await within(line.broker.forget(queue.boxes(line.spec.is_redis).ledger, uid))
    except BrokerError as error:
        log.info("traces of a Replay stay in the ledger", namespace=namespace, reason=type(error).__name__)


def used_secrets(operation: Operation) -> set[tuple[str, str]]:
    """Every Secret that a connection or a queue names."""
    used: set[tuple[str, str]] = set()
    for body in operation.snapshots[CONNECTIONS].all():
        connection = read(BrokerConnection, body)
        used |= {(connection.namespace, name) for name in connection.spec.secret_names} if connection else set()
    for body in operation.snapshots[QUEUES].all():
        if "delivery" not in body.get("spec", {}):
            continue
        queue = read(DeadLetterQueue, body)
        connection = read(BrokerConnection, operation.snapshots[CONNECTIONS].get(*_broker(body)))
        used |= {(queue.namespace, name) for name in secrets_of(queue, connection)} if queue and connection else set()
    return used


def _broker(body: Body) -> tuple[str, str]:
    return body["metadata"]["namespace"], named(body, "brokerRef")
