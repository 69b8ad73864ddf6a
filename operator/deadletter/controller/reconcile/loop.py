"""One pass over one object, whatever happens in it: an error is counted, told without its content, and tried again."""

import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from pydantic import ValidationError

from deadletter import metrics
from deadletter.api.kinds import CustomResource, Status
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


async def reconcile_one(context: OperatorContext, key: ObjectKey) -> None:
    """Judge one object; never raises."""
    began = time.monotonic()
    body = context.informers[key.resource].get(key.namespace, key.name)
    try:
        if body is None:
            await forget_deleted(context, key)
        elif await _dispatch(context, key, body):
            context.workqueue.add_rate_limited(key, max(context.settings.retry_seconds, context.workqueue.failing / MAX_RETRIES_PER_S))
        else:
            context.workqueue.forget(key)
    except ApiError as error:
        if error.status in (404, 409):  # it went or changed while we looked: look at what is there now
            context.workqueue.add_rate_limited(key, context.settings.retry_seconds)
            return
        _report_error(context, key, f"Api{error.status}", error.message)
    except ProbeInProgress:
        context.workqueue.add_rate_limited(key, context.settings.retry_seconds)
        return
    except BrokerError as error:
        _report_error(context, key, type(error).__name__, "")
    except Exception as error:  # noqa: BLE001 - one object must never end the operator; the text may hold a secret
        _report_error(context, key, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)[-3:]))
    finally:
        context.liveness.reconciled_at = time.monotonic()
    metrics.RECONCILE_DURATION.labels(key.resource.kind).observe(time.monotonic() - began)


def _report_error(context: OperatorContext, key: ObjectKey, reason: str, where: str) -> None:
    metrics.RECONCILE_ERRORS.labels(key.resource.kind, reason).inc()
    log.warning(
        "a pass failed",
        kind=key.resource.kind,
        namespace=key.namespace,
        name=key.name,
        reason=reason,
        error=where,
    )
    context.workqueue.add_rate_limited(key, context.settings.retry_seconds)


async def _dispatch(context: OperatorContext, key: ObjectKey, body: Body) -> bool:
    try:
        model: CustomResource = MODELS[key.resource].from_body(body)
    except ValidationError as error:
        await _report_invalid_spec(context, key, body, error)
        return False
    bound = {"kind": key.resource.kind, "namespace": key.namespace, "name": key.name}
    with structlog.contextvars.bound_contextvars(**bound, generation=model.generation):
        log.debug("pass")
        return await RECONCILERS[key.resource](context, key, model, body)


async def _report_invalid_spec(context: OperatorContext, key: ObjectKey, body: Body, error: ValidationError) -> None:
    """A spec that no schema should have let through: said in the status, field by field, without its values."""
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)]
    sentence = "; ".join(found)[:1024]
    old = Status.model_validate({"conditions": (body.get("status") or {}).get("conditions") or ()})
    ready = "Succeeded" if key.resource is REPLAYS else "Ready"
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
        written = await context.kube.patch(key.resource, key.namespace, key.name, patch, "status")
        context.informers[key.resource].upsert(written)


async def forget_deleted(context: OperatorContext, key: ObjectKey) -> None:
    """An object is gone: nothing of it is kept."""
    context.workqueue.remove(key)
    context.status_written_at.pop(key, None)
    namespaced_name = (key.namespace, key.name)
    if key.resource is QUEUES:
        context.observed.forget(*namespaced_name)
        metrics.remove_queue(*namespaced_name)
        await close_unused_brokers(context)
    elif key.resource is REPLAYS:
        metrics.remove_replay(*namespaced_name)
    elif key.resource is CONNECTIONS:
        await close_unused_brokers(context)


async def close_unused_brokers(context: OperatorContext) -> None:
    """A line goes with its connection, or with the last queue that had boxes to drop through it."""
    for key, _ in context.pool.items():
        gone = context.informers[CONNECTIONS].get(*key) is None
        if gone and not context.informers[QUEUES].by_index(BY_BROKER, *key):
            await context.pool.close(*key)
