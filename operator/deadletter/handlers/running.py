"""Who may act on a queue: one Replay at a time, the oldest first; a running one before all.

A DryRun stands in the same line: whoever reads a partition's ledger to settle in it fences the one before.
"""

from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.cluster import JOBS, REPLAYS, Body
from deadletter.core import names
from deadletter.handlers.neighbours import QUEUE
from deadletter.handlers.operation import Operation


def _waits(body: Body) -> bool:
    spec, status = body["spec"], body.get("status") or {}
    stuck = any(one["type"] == "Stalled" and one["status"] == "True" for one in status.get("conditions", ()))
    alive = not status.get("completionTime") and not body["metadata"].get("deletionTimestamp")
    return alive and not spec.get("suspend") and not stuck


def _order(operation: Operation, body: Body) -> tuple[bool, bool, str, str]:
    meta = body["metadata"]
    job = operation.snapshots[JOBS].get(meta["namespace"], names.child(meta["name"], "replay"))
    runs = job is not None and not job["spec"].get("suspend")
    # A preview before the Apply that waits for it, whichever was written first.
    return not runs, body["spec"].get("mode") != "DryRun", meta["creationTimestamp"], meta["name"]


def first_in_line(operation: Operation, namespace: str, queue: str) -> str | None:
    """The Replay that runs, or the next one to."""
    waiting = [body for body in operation.snapshots[REPLAYS].by(QUEUE, namespace, queue) if _waits(body)]
    chosen = min(waiting, key=lambda body: _order(operation, body), default=None)
    return str(chosen["metadata"]["name"]) if chosen else None


def running_replay(operation: Operation, queue: DeadLetterQueue) -> str | None:
    """The Replay that keeps a standing redrive from acting."""
    return first_in_line(operation, queue.namespace, queue.name)


def ahead_of(operation: Operation, replay: Replay) -> str | None:
    """The Replay that goes before this one."""
    chosen = first_in_line(operation, replay.namespace, replay.spec.queue_ref.name)
    return None if chosen in (None, replay.name) else chosen
