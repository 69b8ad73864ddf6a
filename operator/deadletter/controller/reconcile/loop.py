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
from deadletter.clock import now_ms
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import queue, references, replay
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import MODELS
from deadletter.controller.state.broker_pool import ProbeInProgress
from deadletter.controller.state.dependents import BY_BROKER
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, ApiError, Body, Resource
from deadletter.plan.conditions import condition, merge_conditions

log = structlog.stdlib.get_logger("reconcile")
MAX_RETRIES_PER_S = 20  # passes a second over things that only time heals, however many there are
RECONCILERS: dict[Resource, Callable[..., Awaitable[bool]]] = {
    CONNECTIONS: references.reconcile_connection,
    POLICIES: references.reconcile_policy,
    QUEUES: queue.reconcile,
    REPLAYS: replay.reconcile,
}


async def reconcile_one(operation: OperatorContext, thing: ObjectKey) -> None:
    """Judge one object; never raises."""
    began = time.monotonic()
    body = operation.informers[thing.resource].get(thing.namespace, thing.name)
    try:
        if body is None:
            await forget_deleted(operation, thing)
        elif await _dispatch(operation, thing, body):
            operation.workqueue.add_rate_limited(thing, max(operation.settings.retry_seconds, operation.workqueue.failing / MAX_RETRIES_PER_S))
        else:
            operation.workqueue.forget(thing)
    except ApiError as error:
        if error.status in (404, 409):  # it went or changed while we looked: look at what is there now
            operation.workqueue.add_rate_limited(thing, operation.settings.retry_seconds)
            return
        _report_error(operation, thing, f"Api{error.status}", error.message)
    except ProbeInProgress:
        operation.workqueue.add_rate_limited(thing, operation.settings.retry_seconds)
        return
    except BrokerError as error:
        _report_error(operation, thing, type(error).__name__, "")
    except Exception as error:  # noqa: BLE001 - one object must never end the operator; the text may hold a secret
        _report_error(operation, thing, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)[-3:]))
    finally:
        operation.liveness.reconciled_at = time.monotonic()
    metrics.RECONCILE_SECONDS.labels(thing.resource.kind).observe(time.monotonic() - began)


def _report_error(operation: OperatorContext, thing: ObjectKey, reason: str, where: str) -> None:
    metrics.RECONCILE_ERRORS.labels(thing.resource.kind, reason).inc()
    log.warning(
        "a pass failed",
        kind=thing.resource.kind,
        namespace=thing.namespace,
        name=thing.name,
        reason=reason,
        error=where,
    )
    operation.workqueue.add_rate_limited(thing, operation.settings.retry_seconds)


async def _dispatch(operation: OperatorContext, thing: ObjectKey, body: Body) -> bool:
    try:
        model: Kind = MODELS[thing.resource].from_body(body)
    except ValidationError as error:
        await _report_invalid_spec(operation, thing, body, error)
        return False
    bound = {"kind": thing.resource.kind, "namespace": thing.namespace, "name": thing.name}
    with structlog.contextvars.bound_contextvars(**bound, generation=model.generation):
        log.debug("pass")
        return await RECONCILERS[thing.resource](operation, thing, model, body)


async def _report_invalid_spec(operation: OperatorContext, thing: ObjectKey, body: Body, error: ValidationError) -> None:
    """A spec that no schema should have let through: said in the status, field by field, without its values."""
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)]
    sentence = "; ".join(found)[:1024]
    old = Status.model_validate({"conditions": (body.get("status") or {}).get("conditions") or ()})
    ready = "Succeeded" if thing.resource is REPLAYS else "Ready"
    said = [
        condition(ready, False, Reason.InvalidSpec, sentence),
        condition("Reconciling", False, Reason.InvalidSpec),
        condition("Stalled", True, Reason.InvalidSpec, sentence),
    ]
    generation = body["metadata"].get("generation", 0)
    conditions = [one.to_wire() for one in merge_conditions(old.conditions, said, generation, now_ms())]
    status: dict[str, Any] = (body.get("status") or {}) | {"observedGeneration": generation, "conditions": conditions}
    if statuses.merge_patch(body.get("status") or {}, status):
        patch = {"metadata": {"uid": body["metadata"]["uid"]}, "status": status}
        written = await operation.kube.patch(thing.resource, thing.namespace, thing.name, patch, "status")
        operation.informers[thing.resource].upsert(written)


async def forget_deleted(operation: OperatorContext, thing: ObjectKey) -> None:
    """An object is gone: nothing of it is kept."""
    operation.workqueue.remove(thing)
    operation.status_written_at.pop(thing, None)
    key = (thing.namespace, thing.name)
    if thing.resource is QUEUES:
        operation.forget_queue(*key)
        metrics.forget_queue(*key)
        await close_unused_brokers(operation)
    elif thing.resource is REPLAYS:
        metrics.forget_replay(*key)
    elif thing.resource is CONNECTIONS:
        await close_unused_brokers(operation)


async def close_unused_brokers(operation: OperatorContext) -> None:
    """A line goes with its connection, or with the last queue that had boxes to drop through it."""
    for key, _ in operation.pool.items():
        gone = operation.informers[CONNECTIONS].get(*key) is None
        if gone and not operation.informers[QUEUES].by_index(BY_BROKER, *key):
            await operation.pool.close(*key)
