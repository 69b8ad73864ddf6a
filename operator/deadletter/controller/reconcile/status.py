"""Write statuses and Events: a status once at the end of a pass, if it differs; an Event for a changed condition."""

import time
from collections.abc import Iterable
from typing import Any

import structlog

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.custom_resource import Condition, CustomResource
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.core import times
from deadletter.core.reasons import Reason
from deadletter.kube import EVENTS, ApiError, Body
from deadletter.plan.conditions import changed_conditions, condition, merge_conditions
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import NUMBER_FIELDS, parse_conditions
from deadletter.wall_clock import now_ms

# A change of these fields alone waits until `status_seconds` have passed since the last write.
THROTTLED_FIELDS = frozenset(
    {*NUMBER_FIELDS, "matched", "replayed", "archived", "discarded", "skipped", "failedAgain", "remaining", "skippedBy"}
    | {"targets", "bytes", "samples", "lettersPerSecond", "estimatedCompletionTime"}
)
EVENT_CONDITIONS = frozenset({"Ready", "Succeeded", "Degraded", "Stalled"})
MAX_MESSAGE_CHARACTERS = 1024
log = structlog.stdlib.get_logger("status")


def ready_status(resource: BrokerConnection | RetryPolicy, found: Finding | None, queues: int) -> dict[str, Any]:
    """Return the status of an object that queues refer to; its first condition is Ready."""
    reason, message = (found.reason, found.message) if found else (Reason.Reconciled, "")
    is_stalled = found is not None and not found.is_transient
    updates = [
        condition("Ready", found is None, reason, message),
        condition("Reconciling", found is not None and found.is_transient, reason, message),
        condition("Stalled", is_stalled, reason if is_stalled else Reason.AsExpected, message if is_stalled else ""),
    ]
    conditions = merge_conditions(resource.status.conditions, updates, resource.generation, now_ms())
    return {
        "observedGeneration": resource.generation,
        "conditions": [one.to_wire() for one in conditions],
        "queues": queues,
    }


def merge_patch(old: Body, new: Body) -> dict[str, Any]:
    """Return the merge patch that turns one status into the other."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return changed | {key: None for key in old if key not in new}


async def write_status(
    context: OperatorContext, key: ObjectKey, resource: CustomResource, body: Body, status: Body
) -> None:
    """Write what differs from the status in `body`, then emit Events; a change of numbers alone may be delayed."""
    patch = merge_patch(body.get("status") or {}, status)
    if not patch:
        return
    if patch.keys() <= THROTTLED_FIELDS and (left := seconds_until_writable(context, key)) > 0:
        context.workqueue.add_after(key, left)
        return
    whole = {"metadata": {"uid": resource.uid}, "status": patch}
    written = await context.kube.patch(key.resource, key.namespace, key.name, whole, "status")
    context.status_written_at[key] = time.monotonic()
    context.informers[key.resource].upsert(written)
    if "startTime" in patch:
        await create_event(context, build_event(key, resource, Reason.Started, "The Job was created.", "Normal"))
    before = parse_conditions(body.get("status") or {})
    changed = changed_conditions(before, parse_conditions(status))
    # Another loss changes no condition if Degraded already reports one, or reports something worse.
    if patch.get("lostParkedLetters") and all(one.reason != Reason.ParkedLettersLost for one in changed):
        message = f"{patch['lostParkedLetters']} parked letters were lost in total. {Reason.ParkedLettersLost.meaning}"
        await create_event(context, build_event(key, resource, Reason.ParkedLettersLost, message, "Warning"))
    was_ready = any(one.type == "Ready" and one.status == "True" for one in before)
    await emit_events(context, key, resource, changed, was_ready=was_ready)


def seconds_until_writable(context: OperatorContext, key: ObjectKey) -> float:
    """Return how long a change of numbers alone must wait."""
    last = context.status_written_at.get(key)
    return 0.0 if last is None else last + context.settings.status_seconds - time.monotonic()


async def emit_events(
    context: OperatorContext,
    key: ObjectKey,
    resource: CustomResource,
    changed: Iterable[Condition],
    *,
    was_ready: bool,
) -> None:
    """Log every changed condition and create an Event for those users care about, each text once.

    A courier that is started for the first time is no reason for a warning; one that a ready queue lost is.
    """
    emitted = set()
    for one in changed:
        log.info("condition changed", condition=one.type, status=one.status, reason=one.reason, message=one.message)
        if _deserves_event(one) and (one.reason, one.message) not in emitted:
            emitted.add((one.reason, one.message))
            is_good = (one.status == "True") == (one.type in ("Ready", "Succeeded"))
            is_starting = one.reason == Reason.WaitingForCourier and not was_ready
            message = one.message or f"{one.type} is {one.status}"
            level = "Normal" if is_good or is_starting else "Warning"
            await create_event(context, build_event(key, resource, one.reason, message, level))


def _deserves_event(one: Condition) -> bool:
    if one.type not in EVENT_CONDITIONS or one.status == "Unknown":
        return False
    return one.type in ("Ready", "Succeeded") or one.status == "True"


async def create_event(context: OperatorContext, event: Body) -> None:
    """Create an Event; in a namespace that is being deleted the API server refuses it, which is ignored."""
    try:
        await context.kube.create(EVENTS, event["metadata"]["namespace"], event)
    except ApiError as error:
        if error.status not in (403, 404, 409):
            raise


def build_event(key: ObjectKey, resource: CustomResource, reason: str, message: str, level: str) -> Body:
    """Return an Event about an object, as `kubectl describe` shows it."""
    now = times.render_second(now_ms())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{key.name[:200]}.", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": key.resource.api_version,
            "kind": key.resource.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": resource.uid,
        },
        "type": level,
        "reason": reason,
        "message": message[:MAX_MESSAGE_CHARACTERS],
        "source": {"component": "dlq-operator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
