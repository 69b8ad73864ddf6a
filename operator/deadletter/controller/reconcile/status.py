"""A status is written whole, once, at the end of a pass, and only when it differs; a turned condition is an Event."""

import time
from collections.abc import Iterable
from typing import Any

import structlog

from deadletter.api.kinds import Condition, CustomResource
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.core import times
from deadletter.core.reasons import Reason
from deadletter.kube import EVENTS, ApiError, Body
from deadletter.plan.conditions import changed_conditions
from deadletter.plan.queue_status import NUMBER_FIELDS, parse_conditions

THROTTLED_FIELDS = frozenset(
    {*NUMBER_FIELDS, "matched", "replayed", "archived", "discarded", "skipped", "failedAgain", "remaining", "skippedBy"}
    | {"targets", "bytes", "samples", "lettersPerSecond", "estimatedCompletionTime"}
)
log = structlog.stdlib.get_logger("statuses")
EVENT_CONDITIONS = frozenset({"Ready", "Succeeded", "Degraded", "Stalled"})


def merge_patch(old: Body, new: Body) -> dict[str, Any]:
    """The merge patch that leads from one status to the other."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return changed | {key: None for key in old if key not in new}


async def write_status(context: OperatorContext, key: ObjectKey, kind: CustomResource, body: Body, status: Body) -> None:
    """Write what differs; numbers alone wait until their time has come."""
    patch = merge_patch(body.get("status") or {}, status)
    if not patch:
        return
    if patch.keys() <= THROTTLED_FIELDS and (left := seconds_until_writable(context, key)) > 0:
        context.workqueue.add_after(key, left)
        return
    whole = {"metadata": {"uid": kind.uid}, "status": patch}
    written = await context.kube.patch(key.resource, key.namespace, key.name, whole, "status")
    context.status_written_at[key] = time.monotonic()
    context.informers[key.resource].upsert(written)
    if "startTime" in patch:
        await create_event(context, build_event(key, kind, Reason.Started, "Its Job was made.", "Normal"))
    conditions = changed_conditions(parse_conditions(body.get("status") or {}), parse_conditions(status))
    # A second loss, or one behind a worse trouble, turns no condition.
    if patch.get("lostParkedLetters") and all(one.reason != Reason.ParkedLettersLost for one in conditions):
        message = f"{patch['lostParkedLetters']} parked letters were lost in all. {Reason.ParkedLettersLost.meaning}"
        await create_event(context, build_event(key, kind, Reason.ParkedLettersLost, message, "Warning"))
    await emit_events(context, key, kind, conditions)


def seconds_until_writable(context: OperatorContext, key: ObjectKey) -> float:
    """Seconds until numbers alone may be written again."""
    last = context.status_written_at.get(key)
    return 0.0 if last is None else last + context.settings.status_seconds - time.monotonic()


async def emit_events(context: OperatorContext, key: ObjectKey, kind: CustomResource, conditions: Iterable[Condition]) -> None:
    """A line of the log for each condition that turned, and an Event for what people want to hear of, once."""
    told = set()
    for one in conditions:
        log.info("turned", condition=one.type, status=one.status, reason=one.reason, message=one.message)
        news = one.type in EVENT_CONDITIONS and one.status != "Unknown" and _deserves_event(one)
        if news and (one.reason, one.message) not in told:
            told.add((one.reason, one.message))
            good = (one.status == "True") == (one.type in ("Ready", "Succeeded"))
            message = one.message or f"{one.type} is {one.status}"
            await create_event(context, build_event(key, kind, one.reason, message, "Normal" if good else "Warning"))


async def create_event(context: OperatorContext, made: Body) -> None:
    """Create an Event."""
    try:
        await context.kube.create(EVENTS, made["metadata"]["namespace"], made)
    except ApiError as error:
        if error.status not in (403, 404, 409):  # a namespace that is going takes no Events
            raise


def _deserves_event(one: Condition) -> bool:
    return one.type in ("Ready", "Succeeded") or one.status == "True"


def build_event(key: ObjectKey, kind: CustomResource, reason: str, message: str, level: str) -> Body:
    """What `kubectl describe` shows."""
    now = times.render(time.time_ns() // 1_000_000_000 * 1000)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{key.name[:200]}.", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": key.resource.api_version,
            "kind": key.resource.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": kind.uid,
        },
        "type": level,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": "dlq-operator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
