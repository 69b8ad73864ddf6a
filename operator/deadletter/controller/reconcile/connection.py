"""Reconcile a BrokerConnection: probe the broker, and count the queues that use it."""

from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import ServerInfo
from deadletter.controller.context import ObjectKey, OperatorContext, object_key
from deadletter.controller.reconcile.boxes import to_finding
from deadletter.controller.reconcile.status import ready_status, write_status
from deadletter.controller.state.dependents import BY_BROKER
from deadletter.kube import QUEUES, Body
from deadletter.plan.findings import Finding
from deadletter.plan.queue_checks import check_secret_keys, fields_are_supported

MAX_VERSION_CHARACTERS = 64


async def reconcile(context: OperatorContext, key: ObjectKey, connection: BrokerConnection, body: Body) -> bool:
    """Run one pass; True if the connection should be probed again soon."""
    found = await _check_secrets(context, connection) or fields_are_supported(connection)
    server = None
    if found is None:
        try:
            server = await context.pool.probe(connection)
        except BrokerError as error:
            found = to_finding(error)
    status = ready_status(connection, found, len(_queues_of(context, key)))
    if server is not None:
        status["server"] = _server_status(server)
    elif connection.status.server is not None:
        status["server"] = connection.status.server.to_wire()
    before = connection.status.condition("Ready")
    is_changed = (before.status if before else "Unknown") != status["conditions"][0]["status"]
    await write_status(context, key, connection, body, status)
    if is_changed:
        for queue in _queues_of(context, key):
            context.workqueue.add(object_key(QUEUES, queue))
    return found is not None and found.is_transient


def _queues_of(context: OperatorContext, key: ObjectKey) -> list[Body]:
    return context.informers[QUEUES].by_index(BY_BROKER, key.namespace, key.name)


async def _check_secrets(context: OperatorContext, connection: BrokerConnection) -> Finding | None:
    namespace = connection.namespace
    facts = {name: await context.secrets.fact(namespace, name) for name in connection.spec.secret_names}
    return check_secret_keys(namespace, connection.spec.secret_keys, facts)


def _server_status(server: ServerInfo) -> dict[str, Any]:
    return {
        "kind": server.kind,
        "version": server.version[:MAX_VERSION_CHARACTERS],
        "brokers": server.brokers,
        "transactions": server.transactions,
    }


async def validate(_: OperatorContext, __: Body) -> list[Finding]:
    """Accept every connection; the schema contains all checks that need no request."""
    return []
