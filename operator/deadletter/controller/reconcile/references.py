"""One pass over what queues refer to: a BrokerConnection is probed, a RetryPolicy compiled; both count their users."""

from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.retry_policies import RetryPolicy
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import ServerInfo
from deadletter.clock import now_ms
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import boxes
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.state.dependents import BY_BROKER, BY_POLICY
from deadletter.core.reasons import Reason
from deadletter.kube import QUEUES, Body
from deadletter.plan.conditions import condition, merge_conditions
from deadletter.plan.findings import Finding
from deadletter.plan.queue_checks import check_secret_keys, fields_are_supported, rules_compile


async def reconcile_connection(context: OperatorContext, key: ObjectKey, connection: BrokerConnection, body: Body) -> bool:
    """Does the broker answer? True: look again soon."""
    found = await _secrets(context, connection) or fields_are_supported(connection)
    server = None
    if found is None:
        try:
            server = await context.pool.probe(connection)
        except BrokerError as error:
            found = boxes.to_finding(error)
    status = _status(connection, found, users(context, key, BY_BROKER))
    if server is not None:
        status["server"] = _server(server)
    elif connection.status.server is not None:
        status["server"] = connection.status.server.to_wire()
    turned = (connection.status.condition("Ready") or condition("Ready", None, Reason.Pending)).status != _ready(status)
    await statuses.write_status(context, key, connection, body, status)
    if turned:
        wake_users(context, key, BY_BROKER)
    return found is not None and found.is_transient


def _ready(status: Body) -> str:
    return str(status["conditions"][0]["status"])


def _server(server: ServerInfo) -> dict[str, Any]:
    return {
        "kind": server.kind,
        "version": server.version[:64],
        "brokers": server.brokers,
        "transactions": server.transactions,
    }


async def _secrets(context: OperatorContext, connection: BrokerConnection) -> Finding | None:
    where = connection.namespace
    facts = {name: await context.secrets.fact(where, name) for name in connection.spec.secret_names}
    return check_secret_keys(where, connection.spec.secret_keys, facts)


async def reconcile_policy(context: OperatorContext, key: ObjectKey, policy: RetryPolicy, body: Body) -> bool:
    """Can the policy be followed?"""
    found = rules_compile(policy)
    await statuses.write_status(context, key, policy, body, _status(policy, found, users(context, key, BY_POLICY)))
    return False


def _status(key: BrokerConnection | RetryPolicy, found: Finding | None, queues: int) -> dict[str, Any]:
    reason, message = (found.reason, found.message) if found else (Reason.Reconciled, "")
    stuck = found is not None and not found.is_transient
    said = [
        condition("Ready", found is None, reason, message),
        condition("Reconciling", found is not None and found.is_transient, reason, message),
        condition("Stalled", stuck, reason if stuck else Reason.AsExpected, message if stuck else ""),
    ]
    conditions = merge_conditions(key.status.conditions, said, key.generation, now_ms())
    return {
        "observedGeneration": key.generation,
        "conditions": [one.to_wire() for one in conditions],
        "queues": queues,
    }


def users(context: OperatorContext, key: ObjectKey, index: str) -> int:
    """How many queues name it."""
    return len(context.informers[QUEUES].by_index(index, key.namespace, key.name))


def wake_users(context: OperatorContext, key: ObjectKey, index: str) -> None:
    """Let the queues that name it look again."""
    for body in context.informers[QUEUES].by_index(index, key.namespace, key.name):
        context.workqueue.add(ObjectKey(QUEUES, key.namespace, body["metadata"]["name"]))
