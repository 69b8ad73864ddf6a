"""One pass over one object, whatever happens in it: an error is counted, told without its content, and tried again."""

import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from pydantic import ValidationError

from deadletter import metrics
from deadletter.api.kinds import Kind, Status
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import Operation, Thing
from deadletter.controller.reconcile import queue, references, replay
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import MODELS, now_ms
from deadletter.controller.state.broker_pool import Meeting
from deadletter.controller.state.dependents import BROKER
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, ApiError, Body, Resource
from deadletter.plan.conditions import claim, put

log = structlog.stdlib.get_logger("reconcile")
TOGETHER = 20  # passes a second over things that only time heals, however many there are
RECONCILE: dict[Resource, Callable[..., Awaitable[bool]]] = {
    CONNECTIONS: references.reconcile_connection,
    POLICIES: references.reconcile_policy,
    QUEUES: queue.reconcile,
    REPLAYS: replay.reconcile,
}


async def look(operation: Operation, thing: Thing) -> None:
    """Judge one object; never raises."""
    began = time.monotonic()
    body = operation.snapshots[thing.resource].get(thing.namespace, thing.name)
    try:
        if body is None:
            await forget(operation, thing)
        elif await _judge(operation, thing, body):
            operation.work.backoff(thing, max(operation.settings.retry_seconds, operation.work.troubled / TOGETHER))
        else:
            operation.work.went_well(thing)
    except ApiError as error:
        if error.status in (404, 409):  # it went or changed while we looked: look at what is there now
            operation.work.backoff(thing, operation.settings.retry_seconds)
            return
        _trouble(operation, thing, f"Api{error.status}", error.message)
    except Meeting:
        operation.work.backoff(thing, operation.settings.retry_seconds)
        return
    except BrokerError as error:
        _trouble(operation, thing, type(error).__name__, "")
    except Exception as error:  # noqa: BLE001 - one object must never end the operator; the text may hold a secret
        _trouble(operation, thing, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)[-3:]))
    finally:
        operation.pulse.passed_at = time.monotonic()
    metrics.RECONCILE_SECONDS.labels(thing.resource.kind).observe(time.monotonic() - began)


def _trouble(operation: Operation, thing: Thing, reason: str, where: str) -> None:
    metrics.RECONCILE_ERRORS.labels(thing.resource.kind, reason).inc()
    log.warning(
        "a pass failed",
        kind=thing.resource.kind,
        namespace=thing.namespace,
        name=thing.name,
        reason=reason,
        error=where,
    )
    operation.work.backoff(thing, operation.settings.retry_seconds)


async def _judge(operation: Operation, thing: Thing, body: Body) -> bool:
    try:
        model: Kind = MODELS[thing.resource].from_body(body)
    except ValidationError as error:
        await _refuse(operation, thing, body, error)
        return False
    bound = {"kind": thing.resource.kind, "namespace": thing.namespace, "name": thing.name}
    with structlog.contextvars.bound_contextvars(**bound, generation=model.generation):
        log.debug("pass")
        return await RECONCILE[thing.resource](operation, thing, model, body)


async def _refuse(operation: Operation, thing: Thing, body: Body, error: ValidationError) -> None:
    """A spec that no schema should have let through: said in the status, field by field, without its values."""
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)]
    sentence = "; ".join(found)[:1024]
    old = Status.model_validate({"conditions": (body.get("status") or {}).get("conditions") or ()})
    ready = "Succeeded" if thing.resource is REPLAYS else "Ready"
    said = [
        claim(ready, False, Reason.InvalidSpec, sentence),
        claim("Reconciling", False, Reason.InvalidSpec),
        claim("Stalled", True, Reason.InvalidSpec, sentence),
    ]
    generation = body["metadata"].get("generation", 0)
    conditions = [one.to_wire() for one in put(old.conditions, said, generation, now_ms())]
    status: dict[str, Any] = (body.get("status") or {}) | {"observedGeneration": generation, "conditions": conditions}
    if statuses.difference(body.get("status") or {}, status):
        patch = {"metadata": {"uid": body["metadata"]["uid"]}, "status": status}
        written = await operation.cluster.patch(thing.resource, thing.namespace, thing.name, patch, "status")
        operation.snapshots[thing.resource].take(written)


async def forget(operation: Operation, thing: Thing) -> None:
    """An object is gone: nothing of it is kept."""
    operation.work.forget(thing)
    operation.written_at.pop(thing, None)
    key = (thing.namespace, thing.name)
    if thing.resource is QUEUES:
        operation.forget(*key)
        metrics.forget_queue(*key)
        await close_unused(operation)
    elif thing.resource is REPLAYS:
        metrics.forget_replay(*key)
    elif thing.resource is CONNECTIONS:
        await close_unused(operation)


async def close_unused(operation: Operation) -> None:
    """A line goes with its connection, or with the last queue that had boxes to drop through it."""
    for key, _ in operation.pool.all():
        gone = operation.snapshots[CONNECTIONS].get(*key) is None
        if gone and not operation.snapshots[QUEUES].by(BROKER, *key):
            await operation.pool.close(*key)
