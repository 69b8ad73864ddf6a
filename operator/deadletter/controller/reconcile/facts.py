"""Gather the facts that checks and status depend on, from the informers and from what the sweep observed."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.custom_resource import CustomResource
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import ObjectKey, OperatorContext, object_key
from deadletter.controller.state.dependents import BY_DEAD_NAME, BY_ROUTE_TARGET, ref_name
from deadletter.controller.state.informer import namespaced_name
from deadletter.core import names, times
from deadletter.kube import CONNECTIONS, DEPLOYMENTS, POLICIES, QUEUES, REPLAYS, SERVICES, ApiError, Body, Resource
from deadletter.plan.facts import BoxOwner, ParkedLetterLoss, QueueFacts
from deadletter.plan.worker_manifests import worker_role, worker_secret_names
from deadletter.wall_clock import now_ms

Model = TypeVar("Model", bound=CustomResource)
MAX_ROUTING_QUEUES = 5
YOUNGEST = "9"  # sorts after every creation timestamp
MODELS: dict[Resource, type[CustomResource]] = {
    CONNECTIONS: BrokerConnection,
    POLICIES: RetryPolicy,
    QUEUES: DeadLetterQueue,
    REPLAYS: Replay,
}


def parse(model: type[Model], body: Body | None) -> Model | None:
    """Return the model of a body; None if there is no body or it is invalid."""
    if body is None:
        return None
    try:
        return model.from_body(body)
    except ValidationError:
        return None


async def find_object(
    context: OperatorContext,
    model: type[Model],
    resource: Resource,
    namespace: str,
    name: str,
    confirm_missing: bool = True,
) -> Model | None:
    """Return a referenced object; one that is not cached is read from the API server if `confirm_missing`."""
    body = context.informers[resource].get(namespace, name)
    if body is None and confirm_missing and name:
        body = await context.kube.get(resource, namespace, name)
    return parse(model, body)


async def confirm_current(context: OperatorContext, queue: DeadLetterQueue) -> Body:
    """Read the queue before something is destroyed; raises ApiError if it is not the one that was validated."""
    informer = context.informers[QUEUES]
    live = await context.kube.get(QUEUES, queue.namespace, queue.name)
    if live is None:
        informer.remove({"metadata": {"namespace": queue.namespace, "name": queue.name, "uid": queue.uid}})
        raise ApiError(404, "the queue was deleted")
    informer.upsert(live)
    if (live["metadata"]["uid"], live["metadata"]["generation"]) != (queue.uid, queue.generation):
        raise ApiError(409, "the queue has changed")
    return live


def still_exists(context: OperatorContext, queue: DeadLetterQueue) -> bool:
    """True if the queue was not deleted, or deleted and created again, since it was read."""
    body = context.informers[QUEUES].get(queue.namespace, queue.name)
    return body is not None and body["metadata"]["uid"] == queue.uid


async def gather_queue_facts(
    context: OperatorContext, queue: DeadLetterQueue, confirm_missing: bool = True
) -> QueueFacts:
    """Gather what a queue's checks depend on, except Secrets, Services and the broker's answers.

    The webhook sets `confirm_missing` to False: it makes no request.
    """
    namespace, spec = queue.namespace, queue.spec
    connection = await find_object(
        context, BrokerConnection, CONNECTIONS, namespace, spec.broker_ref.name, confirm_missing
    )
    policy = None
    if spec.retry_policy_ref is not None:
        policy = await find_object(
            context, RetryPolicy, POLICIES, namespace, spec.retry_policy_ref.name, confirm_missing
        )
    queues = await _connected_queues(context, queue, confirm_missing)
    return refresh_observations(context, queue, QueueFacts(connection=connection, policy=policy, queues=queues))


def refresh_observations(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> QueueFacts:
    """Return the facts with everything that a pass itself or the sweep changes read again; makes no request."""
    name = (queue.namespace, queue.name)
    survey = context.observed.surveys.get(name)
    return replace(
        facts,
        box_owner=older_owner(context, queue, facts.connection),
        stats=context.observed.stats.get(name),
        retention_ms=_dead_retention_ms(context, queue, facts.connection),
        loss=known_loss(context, queue),
        ledger_problem=survey.ledger_problem if survey else None,
        owned_boxes=context.observed.owned_boxes.get(name),
        deployment=_worker_deployment(context, queue),
        now=now_ms(),
    )


async def _connected_queues(
    context: OperatorContext, queue: DeadLetterQueue, confirm_missing: bool
) -> dict[str, DeadLetterQueue]:
    """Return the queues it routes to and, if there are any, some of the queues that route to it."""
    targets = {route.queue_ref.name for route in queue.spec.routes}
    found: dict[str, DeadLetterQueue] = {}
    for name in targets - {queue.name}:
        target = await find_object(context, DeadLetterQueue, QUEUES, queue.namespace, name, confirm_missing)
        if target is not None:
            found[name] = target
    # Queues that route to it matter only if it has routes itself, and the message lists only a few of them.
    users = context.informers[QUEUES].by_index(BY_ROUTE_TARGET, queue.namespace, queue.name) if targets else ()
    for body in sorted(users, key=namespaced_name)[:MAX_ROUTING_QUEUES]:
        if (other := parse(DeadLetterQueue, body)) and other.name != queue.name:
            found[other.name] = other
    return found


def older_owner(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None
) -> BoxOwner | None:
    """Return the oldest other queue with the same dead box on the same broker."""
    if connection is None:
        return None
    own_identities = context.pool.identities_of(connection)
    same_box = [
        body
        for body in older_queues(context, queue, connection.spec.is_redis)
        if own_identities & context.pool.identities_of(connection_of(context, body))
    ]
    if not same_box:
        return None
    oldest = min(same_box, key=age_key)["metadata"]
    return BoxOwner(oldest["name"], oldest["namespace"] != queue.namespace)


def older_queues(context: OperatorContext, queue: DeadLetterQueue, is_redis: bool) -> list[Body]:
    """Return the older queues whose dead box has the same name, on any broker."""
    same_name = context.informers[QUEUES].by_index(BY_DEAD_NAME, queue.boxes(is_redis).dead)
    return [body for body in same_name if age_key(body) < queue_age_key(queue)]


def connection_of(context: OperatorContext, body: Body) -> BrokerConnection | None:
    """Return the cached connection that a queue names."""
    namespace, name = body["metadata"]["namespace"], ref_name(body, "brokerRef")
    return parse(BrokerConnection, context.informers[CONNECTIONS].get(namespace, name))


def age_key(body: Body) -> tuple[str, str, str]:
    """Return a sort key, oldest first; namespace and name decide between objects of the same second."""
    meta = body["metadata"]
    return meta.get("creationTimestamp") or YOUNGEST, meta["namespace"], meta["name"]


def queue_age_key(queue: DeadLetterQueue) -> tuple[str, str, str]:
    """Return the sort key of `age_key` for a model; a queue without a creation time is the youngest."""
    return queue.metadata.creation_timestamp or YOUNGEST, queue.namespace, queue.name


def _dead_retention_ms(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None
) -> int | None:
    survey = context.observed.surveys.get((queue.namespace, queue.name))
    if survey is None or connection is None:
        return None
    state = survey.states.get(queue.boxes(connection.spec.is_redis).dead)
    return state.retention_ms if state else None


def known_loss(context: OperatorContext, queue: DeadLetterQueue) -> ParkedLetterLoss | None:
    """Return the loss of parked letters that this operator has seen, or else the one that the status reports."""
    status, reported = queue.status, None
    if status.lost_parked_letters and status.lost_parked_letters_time:
        reported = ParkedLetterLoss(status.lost_parked_letters, times.parse(status.lost_parked_letters_time))
    return context.observed.losses.get((queue.namespace, queue.name), reported)


def _worker_deployment(context: OperatorContext, queue: DeadLetterQueue) -> Body | None:
    role = worker_role(queue)
    return context.informers[DEPLOYMENTS].get(queue.namespace, names.child_name(queue.name, role)) if role else None


async def gather_external_facts(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> QueueFacts:
    """Return the facts with Secrets and Services, which are read by GET; done only after the cheap checks passed."""
    if facts.connection is None:
        return facts
    secrets = {
        name: await context.secrets.fact(queue.namespace, name) for name in worker_secret_names(queue, facts.connection)
    }
    http = queue.spec.delivery.http if queue.spec.delivery else None
    service_names = [http.service_ref.name] if http and http.service_ref else []
    services = await services_exist(context, queue.namespace, service_names)
    return replace(facts, secrets=secrets, services=services)


async def services_exist(context: OperatorContext, namespace: str, services: Iterable[str]) -> dict[str, bool]:
    """Return for each Service whether it exists."""
    return {name: await context.kube.get(SERVICES, namespace, name) is not None for name in services}


def secret_users(context: OperatorContext) -> dict[tuple[str, str], list[ObjectKey]]:
    """Return for each Secret in use the connections and queues to reconcile when it changes."""
    users: dict[tuple[str, str], list[ObjectKey]] = {}

    def add(key: ObjectKey, secrets: Iterable[str]) -> None:
        for name in secrets:
            users.setdefault((key.namespace, name), []).append(key)

    # The open broker of a deleted connection is still needed to delete the boxes of its queues.
    for connection_key, pooled in context.pool.list_open():
        add(ObjectKey(CONNECTIONS, *connection_key), pooled.spec.secret_names)
    for body in context.informers[CONNECTIONS].all():
        if connection := parse(BrokerConnection, body):
            add(object_key(CONNECTIONS, body), connection.spec.secret_names)
    for body in context.informers[QUEUES].all():
        queue = parse(DeadLetterQueue, body) if "delivery" in body["spec"] else None
        connection = connection_of(context, body) if queue else None
        if queue and connection:
            add(object_key(QUEUES, body), worker_secret_names(queue, connection))
    return users
