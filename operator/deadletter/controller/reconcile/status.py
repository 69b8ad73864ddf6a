"""A status is written whole, once, at the end of a pass, and only when it differs; a turned condition is an Event."""

import time
from collections.abc import Iterable
from typing import Any

import structlog

from deadletter.api.kinds import Condition, Kind
from deadletter.controller.context import Operation, Thing
from deadletter.core import times
from deadletter.core.reasons import Reason
from deadletter.kube import EVENTS, ApiError, Body
from deadletter.plan.conditions import turned
from deadletter.plan.queue_status import NUMBERS, conditions_of

SLOW = frozenset(
    {*NUMBERS, "matched", "replayed", "archived", "discarded", "skipped", "failedAgain", "remaining", "skippedBy"}
    | {"targets", "bytes", "samples", "lettersPerSecond", "estimatedCompletionTime"}
)
log = structlog.stdlib.get_logger("statuses")
TOLD = frozenset({"Ready", "Succeeded", "Degraded", "Stalled"})


def difference(old: Body, new: Body) -> dict[str, Any]:
    """The merge patch that leads from one status to the other."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return changed | {key: None for key in old if key not in new}


async def write(operation: Operation, thing: Thing, kind: Kind, body: Body, status: Body) -> None:
    """Write what differs; numbers alone wait until their time has come."""
    patch = difference(body.get("status") or {}, status)
    if not patch:
        return
    if patch.keys() <= SLOW and (left := wait(operation, thing)) > 0:
        operation.work.wake_in(thing, left)
        return
    whole = {"metadata": {"uid": kind.uid}, "status": patch}
    written = await operation.cluster.patch(thing.resource, thing.namespace, thing.name, whole, "status")
    operation.written_at[thing] = time.monotonic()
    operation.snapshots[thing.resource].take(written)
    if "startTime" in patch:
        await announce(operation, event(thing, kind, Reason.Started, "Its Job was made.", "Normal"))
    conditions = turned(conditions_of(body.get("status") or {}), conditions_of(status))
    # A second loss, or one behind a worse trouble, turns no condition.
    if patch.get("lostParkedLetters") and all(one.reason != Reason.ParkedLettersLost for one in conditions):
        message = f"{patch['lostParkedLetters']} parked letters were lost in all. {Reason.ParkedLettersLost.meaning}"
        await announce(operation, event(thing, kind, Reason.ParkedLettersLost, message, "Warning"))
    await tell(operation, thing, kind, conditions)


def wait(operation: Operation, thing: Thing) -> float:
    """Seconds until numbers alone may be written again."""
    last = operation.written_at.get(thing)
    return 0.0 if last is None else last + operation.settings.status_seconds - time.monotonic()


async def tell(operation: Operation, thing: Thing, kind: Kind, conditions: Iterable[Condition]) -> None:
    """A line of the log for each condition that turned, and an Event for what people want to hear of, once."""
    told = set()
    for one in conditions:
        log.info("turned", condition=one.type, status=one.status, reason=one.reason, message=one.message)
        news = one.type in TOLD and one.status != "Unknown" and _is_news(one)
        if news and (one.reason, one.message) not in told:
            told.add((one.reason, one.message))
            good = (one.status == "True") == (one.type in ("Ready", "Succeeded"))
            message = one.message or f"{one.type} is {one.status}"
            await announce(operation, event(thing, kind, one.reason, message, "Normal" if good else "Warning"))


async def announce(operation: Operation, made: Body) -> None:
    """Create an Event."""
    try:
        await operation.cluster.create(EVENTS, made["metadata"]["namespace"], made)
    except ApiError as error:
        if error.status not in (403, 404, 409):  # a namespace that is going takes no Events
            raise


def _is_news(one: Condition) -> bool:
    return one.type in ("Ready", "Succeeded") or one.status == "True"


def event(thing: Thing, kind: Kind, reason: str, message: str, level: str) -> Body:
    """What `kubectl describe` shows."""
    now = times.render(time.time_ns() // 1_000_000_000 * 1000)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{thing.name[:200]}.", "namespace": thing.namespace},
        "involvedObject": {
            "apiVersion": thing.resource.api_version,
            "kind": thing.resource.kind,
            "namespace": thing.namespace,
            "name": thing.name,
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
