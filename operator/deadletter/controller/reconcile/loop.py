"""Reconcile one object from the work queue; an error is counted, logged without its text, and retried."""

import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from pydantic import ValidationError

from deadletter import metrics
from deadletter.api.custom_resource import CustomResource, Status
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import connection, policy, queue, replay
from deadletter.controller.reconcile.facts import MODELS
from deadletter.controller.reconcile.status import merge_patch
from deadletter.controller.state.broker_pool import ProbeInProgress
from deadletter.controller.state.dependents import BY_BROKER
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, ApiError, Body, Resource
from deadletter.plan.conditions import condition, merge_conditions
from deadletter.wall_clock import now_ms

log = structlog.stdlib.get_logger("reconcile")
MAX_RETRIES_PER_S = 20  # of all objects together that wait for something transient
MAX_MESSAGE_CHARACTERS = 1024
SHOWN_FRAMES = 3
RECONCILERS: dict[Resource, Callable[..., Awaitable[bool]]] = {
    CONNECTIONS: connection.reconcile,
    POLICIES: policy.reconcile,
    QUEUES: queue.reconcile,
    REPLAYS: replay.reconcile,
}


async def reconcile_one(context: OperatorContext, key: ObjectKey) -> None:
    """Reconcile the object and put it into the work queue again if necessary; never raises."""
    started = time.monotonic()
    body = context.informers[key.resource].get(key.namespace, key.name)
    workqueue, retry_s = context.workqueue, context.settings.retry_seconds
    try:
        if body is None:
            await forget_deleted(context, key)
        elif await _dispatch(context, key, body):
            workqueue.add_rate_limited(key, max(retry_s, workqueue.failing / MAX_RETRIES_PER_S))
        else:
            workqueue.forget(key)
    except ApiError as error:
        if error.status in (404, 409):  # the object was deleted or changed during the pass
            workqueue.add_rate_limited(key, retry_s)
            return
        _report_error(context, key, f"Api{error.status}", error.message)
    except ProbeInProgress:
        workqueue.add_rate_limited(key, retry_s)
        return
    except BrokerError as error:
        _report_error(context, key, type(error).__name__, "")
    except Exception as error:  # noqa: BLE001 - one object must never end the operator; the text may contain a secret
        frames = traceback.format_tb(error.__traceback__)[-SHOWN_FRAMES:]
        _report_error(context, key, type(error).__name__, "".join(frames))
    finally:
        context.liveness.reconciled_at = time.monotonic()
    metrics.RECONCILE_DURATION.labels(key.resource.kind).observe(time.monotonic() - started)


def _report_error(context: OperatorContext, key: ObjectKey, reason: str, detail: str) -> None:
    metrics.RECONCILE_ERRORS.labels(key.resource.kind, reason).inc()
    log.warning(
        "reconcile failed",
        kind=key.resource.kind,
        namespace=key.namespace,
        name=key.name,
        reason=reason,
        error=detail,
    )
    context.workqueue.add_rate_limited(key, context.settings.retry_seconds)


async def _dispatch(context: OperatorContext, key: ObjectKey, body: Body) -> bool:
    """Run the reconciler of the object's kind; True if the object should be reconciled again soon."""
    try:
        model: CustomResource = MODELS[key.resource].from_body(body)
    except ValidationError as error:
        await _report_invalid_spec(context, key, body, error)
        return False
    fields = {"kind": key.resource.kind, "namespace": key.namespace, "name": key.name}
    with structlog.contextvars.bound_contextvars(**fields, generation=model.generation):
        log.debug("reconciling")
        return await RECONCILERS[key.resource](context, key, model, body)


async def _report_invalid_spec(context: OperatorContext, key: ObjectKey, body: Body, error: ValidationError) -> None:
    """Write the invalid fields into the status, without their values; the schema should have refused such a spec."""
    fields = [
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)
    ]
    message = "; ".join(fields)[:MAX_MESSAGE_CHARACTERS]
    before: Body = body.get("status") or {}
    old = Status.model_validate({"conditions": before.get("conditions") or ()})
    is_replay = key.resource is REPLAYS
    updates = [
        condition("Succeeded" if is_replay else "Ready", False, Reason.InvalidSpec, message),
        *([condition("Finished", True, Reason.InvalidSpec)] if is_replay else []),
        condition("Reconciling", False, Reason.InvalidSpec),
        condition("Stalled", True, Reason.InvalidSpec, message),
    ]
    generation = body["metadata"].get("generation", 0)
    conditions = [one.to_wire() for one in merge_conditions(old.conditions, updates, generation, now_ms())]
    status: dict[str, Any] = before | {"observedGeneration": generation, "conditions": conditions}
    if merge_patch(before, status):
        patch = {"metadata": {"uid": body["metadata"]["uid"]}, "status": status}
        written = await context.kube.patch(key.resource, key.namespace, key.name, patch, "status")
        context.informers[key.resource].upsert(written)


async def forget_deleted(context: OperatorContext, key: ObjectKey) -> None:
    """Remove everything that is kept in memory about a deleted object."""
    context.workqueue.remove(key)
    context.status_written_at.pop(key, None)
    if key.resource is QUEUES:
        context.observed.forget(key.namespace, key.name)
        metrics.remove_queue(key.namespace, key.name)
        await close_unused_brokers(context)
    elif key.resource is REPLAYS:
        metrics.remove_replay(key.namespace, key.name)
    elif key.resource is CONNECTIONS:
        await close_unused_brokers(context)


async def close_unused_brokers(context: OperatorContext) -> None:
    """Close the broker of each deleted connection that no queue needs any more to delete its boxes."""
    for key, _ in context.pool.list_open():
        is_deleted = context.informers[CONNECTIONS].get(*key) is None
        if is_deleted and not context.informers[QUEUES].by_index(BY_BROKER, *key):
            await context.pool.close(*key)
