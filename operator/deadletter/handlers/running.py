"""Who may act on a queue: one Apply at a time, the oldest first; a running one before all."""

from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.cluster import JOBS, REPLAYS, Body
from deadletter.core import names
from deadletter.handlers.neighbours import named
from deadletter.handlers.operation import Operation


def _waits(body: Body, queue: str) -> bool:
    spec, status = body["spec"], body.get("status") or {}
    mine = named(body, "queueRef") == queue and spec.get("mode", "Apply") == "Apply"
    stuck = any(one["type"] == "Stalled" and one["status"] == "True" for one in status.get("conditions", ()))
    alive = not status.get("completionTime") and not body["metadata"].get("deletionTimestamp")
    return mine and alive and not spec.get("suspend") and not stuck


def _order(operation: Operation, body: Body) -> tuple[bool, str, str]:
    meta = body["metadata"]
    job = operation.snapshots[JOBS].get(meta["namespace"], names.child(meta["name"], "replay"))
    runs = job is not None and not job["spec"].get("suspend")
    return not runs, meta["creationTimestamp"], meta["name"]


def first_in_line(operation: Operation, namespace: str, queue: str) -> str | None:
    """The Apply that runs, or the next one to."""
    waiting = [body for body in operation.snapshots[REPLAYS].all(namespace) if _waits(body, queue)]
    chosen = min(waiting, key=lambda body: _order(operation, body), default=None)
    return str(chosen["metadata"]["name"]) if chosen else None


def running_apply(operation: Operation, queue: DeadLetterQueue) -> str | None:
    """The Apply that keeps a standing redrive from acting."""
    return first_in_line(operation, queue.namespace, queue.name)


def ahead_of(operation: Operation, replay: Replay) -> str | None:
    """The Apply that goes before this one; a DryRun waits for nobody."""
    if replay.spec.mode == "DryRun":
        return None
    chosen = first_in_line(operation, replay.namespace, replay.spec.queue_ref.name)
    return None if chosen in (None, replay.name) else chosen
