"""Facts, gathered from the informers; what seems to be missing is confirmed by a GET."""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import ValidationError

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.kinds import CustomResource
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.clock import now_ms
from deadletter.controller.context import OperatorContext
from deadletter.controller.state.dependents import BY_DEAD_NAME, BY_ROUTE_TARGET, ref_name
from deadletter.controller.state.informer import namespaced_name
from deadletter.core import names, times
from deadletter.kube import CONNECTIONS, DEPLOYMENTS, POLICIES, QUEUES, REPLAYS, SERVICES, ApiError, Body, Resource
from deadletter.plan.facts import BoxOwner, ParkedLetterLoss, QueueFacts
from deadletter.plan.worker_manifests import worker_role, worker_secret_names

Model = TypeVar("Model", bound=CustomResource)
MAX_ROUTING_QUEUES = 5  # of many that route to a queue
MODELS: dict[Resource, type[CustomResource]] = {
    CONNECTIONS: BrokerConnection,
    POLICIES: RetryPolicy,
    QUEUES: DeadLetterQueue,
    REPLAYS: Replay,
}



def parse(model: type[Model], body: Body | None) -> Model | None:
    """The model of a body; one that says nonsense counts as not there."""
    if body is None:
        return None
    try:
        return model.from_body(body)
    except ValidationError:
        return None


async def find_object(
    context: OperatorContext, model: type[Model], resource: Resource, namespace: str, name: str, confirm: bool = True
) -> Model | None:
    """An object that another names."""
    body = context.informers[resource].get(namespace, name)
    if body is None and confirm and name:
        body = await context.kube.get(resource, namespace, name)
    return parse(model, body)


async def confirm_current(context: OperatorContext, queue: DeadLetterQueue) -> Body:
    """Nothing is destroyed by hearsay: is the queue still the one we judged? ApiError: it is not, look again."""
    informer = context.informers[QUEUES]
    live = await context.kube.get(QUEUES, queue.namespace, queue.name)
    if live is None:
        informer.remove({"metadata": {"namespace": queue.namespace, "name": queue.name, "uid": queue.uid}})
        raise ApiError(404, "the queue is gone")
    informer.upsert(live)
    if (live["metadata"]["uid"], live["metadata"]["generation"]) != (queue.uid, queue.generation):
        raise ApiError(409, "the queue is another one now")
    return live


def still_exists(context: OperatorContext, queue: DeadLetterQueue) -> bool:
    """True if the queue was not deleted, or deleted and created again, while we looked elsewhere."""
    body = context.informers[QUEUES].get(queue.namespace, queue.name)
    return body is not None and body["metadata"]["uid"] == queue.uid


async def gather_queue_facts(context: OperatorContext, queue: DeadLetterQueue, confirm: bool = True) -> QueueFacts:
    """What a queue is judged by, but for the broker's own word. `confirm`: false in the webhook, which only looks."""
    where = queue.namespace
    connection = await find_object(context, BrokerConnection, CONNECTIONS, where, queue.spec.broker_ref.name, confirm)
    policy = None
    if queue.spec.retry_policy_ref is not None:
        policy = await find_object(context, RetryPolicy, POLICIES, where, queue.spec.retry_policy_ref.name, confirm)
    return QueueFacts(
        connection=connection,
        policy=policy,
        queues=await _connected_queues(context, queue, confirm),
        box_owner=older_owner(context, queue, connection),
        stats=context.observed.stats.get((where, queue.name)),
        retention_ms=_dead_retention_ms(context, queue, connection),
        loss=known_loss(context, queue),
        ledger_problem=ledger_lacks(context, queue),
        owned_boxes=context.observed.owned_boxes.get((where, queue.name)),
        deployment=_worker_deployment(context, queue),
        now=now_ms(),
    )


async def _connected_queues(context: OperatorContext, queue: DeadLetterQueue, confirm: bool) -> dict[str, DeadLetterQueue]:
    """Queues it routes to and queues that route to it."""
    targets = {route.queue_ref.name for route in queue.spec.routes}
    found: dict[str, DeadLetterQueue] = {}
    for name in targets - {queue.name}:
        target = await find_object(context, DeadLetterQueue, QUEUES, queue.namespace, name, confirm)
        if target is not None:
            found[name] = target
    # Who routes to it matters only when it routes on, and then a few names are enough.
    users = context.informers[QUEUES].by_index(BY_ROUTE_TARGET, queue.namespace, queue.name) if targets else ()
    for body in sorted(users, key=namespaced_name)[:MAX_ROUTING_QUEUES]:
        if (other := parse(DeadLetterQueue, body)) and other.name != queue.name:
            found[other.name] = other
    return found


def older_owner(context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None) -> BoxOwner | None:
    """An older queue with the same dead box on the same broker."""
    if connection is None:
        return None
    mine = context.pool.identities_of(connection)
    rivals = older_queues(context, queue, connection.spec.is_redis)
    same = [body for body in rivals if mine & context.pool.identities_of(connection_of(context, body))]
    if not same:
        return None
    first = min(same, key=age_key)["metadata"]
    return BoxOwner(first["name"], first["namespace"] != queue.namespace)


def older_queues(context: OperatorContext, queue: DeadLetterQueue, redis: bool) -> list[Body]:
    """Older queues whose dead box has the same name, on whichever broker."""
    return [body for body in context.informers[QUEUES].by_index(BY_DEAD_NAME, queue.boxes(redis).dead) if age_key(body) < queue_age_key(queue)]


def connection_of(context: OperatorContext, body: Body) -> BrokerConnection | None:
    """The connection that a queue names, as last seen."""
    return parse(
        BrokerConnection, context.informers[CONNECTIONS].get(body["metadata"]["namespace"], ref_name(body, "brokerRef"))
    )


def age_key(body: Body) -> tuple[str, str, str]:
    """The oldest first; of two made in the same second the first by name."""
    meta = body["metadata"]
    return meta.get("creationTimestamp") or "9", meta["namespace"], meta["name"]


def queue_age_key(queue: DeadLetterQueue) -> tuple[str, str, str]:
    """The same of a model; one that is not made yet is younger than all."""
    return queue.metadata.creation_timestamp or "9", queue.namespace, queue.name


def _dead_retention_ms(context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None) -> int | None:
    survey = context.observed.surveys.get((queue.namespace, queue.name))
    if survey is None or connection is None:
        return None
    state = survey.states.get(queue.boxes(connection.spec.is_redis).dead)
    return state.retention_ms if state else None


def known_loss(context: OperatorContext, queue: DeadLetterQueue) -> ParkedLetterLoss | None:
    """Parked letters that were lost, in this life of the operator or before it."""
    status = queue.status
    told = None
    if status.lost_parked_letters and status.lost_parked_letters_time:
        told = ParkedLetterLoss(status.lost_parked_letters, times.parse(status.lost_parked_letters_time))
    return context.observed.losses.get((queue.namespace, queue.name), told)


def ledger_lacks(context: OperatorContext, queue: DeadLetterQueue) -> str | None:
    """Return what the last survey found missing at the ledger; None if there was no survey yet."""
    survey = context.observed.surveys.get((queue.namespace, queue.name))
    return survey.ledger_problem if survey else None


def _worker_deployment(context: OperatorContext, queue: DeadLetterQueue) -> Body | None:
    role = worker_role(queue)
    return context.informers[DEPLOYMENTS].get(queue.namespace, names.child_name(queue.name, role)) if role else None


async def gather_external_facts(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    """Secrets and Services: read by get, so only when all else is right."""
    if facts.connection is None:
        return {}
    secrets = {
        name: await context.secrets.fact(queue.namespace, name) for name in worker_secret_names(queue, facts.connection)
    }
    http = queue.spec.delivery.http if queue.spec.delivery else None
    services = [http.service_ref.name] if http and http.service_ref else []
    return {"secrets": secrets, "services": await services_exist(context, queue.namespace, services)}


async def services_exist(context: OperatorContext, namespace: str, services: Iterable[str]) -> dict[str, bool]:
    """Which of these Services are there."""
    return {name: await context.kube.get(SERVICES, namespace, name) is not None for name in services}
