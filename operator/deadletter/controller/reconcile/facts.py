"""Facts, gathered from the snapshots; what seems to be missing is confirmed by a GET."""

import time
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import ValidationError

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.kinds import Kind
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import Operation
from deadletter.controller.state.dependents import DEAD, ROUTES, named
from deadletter.controller.state.informer import key_of
from deadletter.core import names, times
from deadletter.kube import CONNECTIONS, DEPLOYMENTS, POLICIES, QUEUES, REPLAYS, SERVICES, ApiError, Body, Resource
from deadletter.plan.facts import Loss, Owner, QueueFacts
from deadletter.plan.worker_manifests import role_of, secrets_of

Model = TypeVar("Model", bound=Kind)
NAMED = 5  # of many that route to a queue
MODELS: dict[Resource, type[Kind]] = {
    CONNECTIONS: BrokerConnection,
    POLICIES: RetryPolicy,
    QUEUES: DeadLetterQueue,
    REPLAYS: Replay,
}


def now_ms() -> int:
    """The wall clock, read once per pass."""
    return time.time_ns() // 1_000_000


def read(model: type[Model], body: Body | None) -> Model | None:
    """The model of a body; one that says nonsense counts as not there."""
    if body is None:
        return None
    try:
        return model.from_body(body)
    except ValidationError:
        return None


async def find(
    operation: Operation, model: type[Model], resource: Resource, namespace: str, name: str, confirm: bool = True
) -> Model | None:
    """An object that another names."""
    body = operation.snapshots[resource].get(namespace, name)
    if body is None and confirm and name:
        body = await operation.cluster.get(resource, namespace, name)
    return read(model, body)


async def confirm(operation: Operation, queue: DeadLetterQueue) -> Body:
    """Nothing is destroyed by hearsay: is the queue still the one we judged? ApiError: it is not, look again."""
    snapshot = operation.snapshots[QUEUES]
    live = await operation.cluster.get(QUEUES, queue.namespace, queue.name)
    if live is None:
        snapshot.drop({"metadata": {"namespace": queue.namespace, "name": queue.name, "uid": queue.uid}})
        raise ApiError(404, "the queue is gone")
    snapshot.take(live)
    if (live["metadata"]["uid"], live["metadata"]["generation"]) != (queue.uid, queue.generation):
        raise ApiError(409, "the queue is another one now")
    return live


def is_current(operation: Operation, queue: DeadLetterQueue) -> bool:
    """True if the queue was not deleted, or deleted and created again, while we looked elsewhere."""
    body = operation.snapshots[QUEUES].get(queue.namespace, queue.name)
    return body is not None and body["metadata"]["uid"] == queue.uid


async def gather_queue(operation: Operation, queue: DeadLetterQueue, confirm: bool = True) -> QueueFacts:
    """What a queue is judged by, but for the broker's own word. `confirm`: false in the webhook, which only looks."""
    where = queue.namespace
    connection = await find(operation, BrokerConnection, CONNECTIONS, where, queue.spec.broker_ref.name, confirm)
    policy = None
    if queue.spec.retry_policy_ref is not None:
        policy = await find(operation, RetryPolicy, POLICIES, where, queue.spec.retry_policy_ref.name, confirm)
    return QueueFacts(
        connection=connection,
        policy=policy,
        queues=await _neighbours(operation, queue, confirm),
        owner=owner_of(operation, queue, connection),
        reading=operation.readings.get((where, queue.name)),
        retention_ms=_retention(operation, queue, connection),
        loss=loss_of(operation, queue),
        ledger_lacks=ledger_lacks(operation, queue),
        owned=operation.owned.get((where, queue.name)),
        deployment=_deployment(operation, queue),
        now=now_ms(),
    )


async def _neighbours(operation: Operation, queue: DeadLetterQueue, confirm: bool) -> dict[str, DeadLetterQueue]:
    """Queues it routes to and queues that route to it."""
    targets = {route.queue_ref.name for route in queue.spec.routes}
    found: dict[str, DeadLetterQueue] = {}
    for name in targets - {queue.name}:
        target = await find(operation, DeadLetterQueue, QUEUES, queue.namespace, name, confirm)
        if target is not None:
            found[name] = target
    # Who routes to it matters only when it routes on, and then a few names are enough.
    users = operation.snapshots[QUEUES].by(ROUTES, queue.namespace, queue.name) if targets else ()
    for body in sorted(users, key=key_of)[:NAMED]:
        if (other := read(DeadLetterQueue, body)) and other.name != queue.name:
            found[other.name] = other
    return found


def owner_of(operation: Operation, queue: DeadLetterQueue, connection: BrokerConnection | None) -> Owner | None:
    """An older queue with the same dead box on the same broker."""
    if connection is None:
        return None
    mine = operation.pool.identities(connection)
    rivals = older(operation, queue, connection.spec.is_redis)
    same = [body for body in rivals if mine & operation.pool.identities(broker_of(operation, body))]
    if not same:
        return None
    first = min(same, key=age)["metadata"]
    return Owner(first["name"], first["namespace"] != queue.namespace)


def older(operation: Operation, queue: DeadLetterQueue, redis: bool) -> list[Body]:
    """Older queues whose dead box has the same name, on whichever broker."""
    return [body for body in operation.snapshots[QUEUES].by(DEAD, queue.boxes(redis).dead) if age(body) < age_of(queue)]


def broker_of(operation: Operation, body: Body) -> BrokerConnection | None:
    """The connection that a queue names, as last seen."""
    return read(
        BrokerConnection, operation.snapshots[CONNECTIONS].get(body["metadata"]["namespace"], named(body, "brokerRef"))
    )


def age(body: Body) -> tuple[str, str, str]:
    """The oldest first; of two made in the same second the first by name."""
    meta = body["metadata"]
    return meta.get("creationTimestamp") or "9", meta["namespace"], meta["name"]


def age_of(queue: DeadLetterQueue) -> tuple[str, str, str]:
    """The same of a model; one that is not made yet is younger than all."""
    return queue.metadata.creation_timestamp or "9", queue.namespace, queue.name


def _retention(operation: Operation, queue: DeadLetterQueue, connection: BrokerConnection | None) -> int | None:
    survey = operation.surveys.get((queue.namespace, queue.name))
    if survey is None or connection is None:
        return None
    state = survey.states.get(queue.boxes(connection.spec.is_redis).dead)
    return state.retention_ms if state else None


def loss_of(operation: Operation, queue: DeadLetterQueue) -> Loss | None:
    """Parked letters that were lost, in this life of the operator or before it."""
    status = queue.status
    told = None
    if status.lost_parked_letters and status.lost_parked_letters_time:
        told = Loss(status.lost_parked_letters, times.parse(status.lost_parked_letters_time))
    return operation.losses.get((queue.namespace, queue.name), told)


def ledger_lacks(operation: Operation, queue: DeadLetterQueue) -> str | None:
    """Return what the last survey found missing at the ledger; None if there was no survey yet."""
    survey = operation.surveys.get((queue.namespace, queue.name))
    return survey.ledger_lacks if survey else None


def _deployment(operation: Operation, queue: DeadLetterQueue) -> Body | None:
    role = role_of(queue)
    return operation.snapshots[DEPLOYMENTS].get(queue.namespace, names.child_name(queue.name, role)) if role else None


async def gather_outside(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    """Secrets and Services: read by get, so only when all else is right."""
    if facts.connection is None:
        return {}
    secrets = {
        name: await operation.secrets.fact(queue.namespace, name) for name in secrets_of(queue, facts.connection)
    }
    http = queue.spec.delivery.http if queue.spec.delivery else None
    services = [http.service_ref.name] if http and http.service_ref else []
    return {"secrets": secrets, "services": await existing(operation, queue.namespace, services)}


async def existing(operation: Operation, namespace: str, services: Iterable[str]) -> dict[str, bool]:
    """Which of these Services are there."""
    return {name: await operation.cluster.get(SERVICES, namespace, name) is not None for name in services}
