"""Who may act on a queue: one Replay at a time, the oldest first; a running one before all.

A DryRun stands in the same line: whoever reads a partition's ledger to settle in it fences the one before. One that
cannot begin, because something it names is missing, holds nobody back; once it can, it joins the line.
"""

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.controller.context import Operation
from deadletter.controller.state.dependents import QUEUE
from deadletter.core import names
from deadletter.core.reasons import Reason
from deadletter.kube import JOBS, REPLAYS, Body
from deadletter.plan.replays import IN_LINE


def stands(body: Body) -> bool:
    """Is it in the line, as far as its status tells? A new one is."""
    conditions = (body.get("status") or {}).get("conditions", ())
    said = next((one["reason"] for one in conditions if one["type"] == "Succeeded"), Reason.Queued)
    return said in IN_LINE


def _waits(operation: Operation, body: Body) -> bool:
    ended = (body.get("status") or {}).get("completionTime") or body["metadata"].get("deletionTimestamp")
    return not ended and not body["spec"].get("suspend") and (stands(body) or _runs(operation, body))


def _runs(operation: Operation, body: Body) -> bool:
    meta = body["metadata"]
    job = operation.snapshots[JOBS].get(meta["namespace"], names.child_name(meta["name"], "replay"))
    return job is not None and not job["spec"].get("suspend")


def _order(operation: Operation, body: Body) -> tuple[bool, bool, str, str]:
    meta = body["metadata"]
    # A preview before the Apply that waits for it, whichever was written first.
    preview = body["spec"].get("mode") == "DryRun"
    return not _runs(operation, body), not preview, meta["creationTimestamp"], meta["name"]


def first_in_line(operation: Operation, namespace: str, queue: str) -> str | None:
    """The Replay that runs, or the next one to."""
    waiting = [body for body in operation.snapshots[REPLAYS].by(QUEUE, namespace, queue) if _waits(operation, body)]
    chosen = min(waiting, key=lambda body: _order(operation, body), default=None)
    return str(chosen["metadata"]["name"]) if chosen else None


def running_replay(operation: Operation, queue: DeadLetterQueue) -> str | None:
    """The Replay that keeps a standing redrive from acting."""
    return first_in_line(operation, queue.namespace, queue.name)


def ahead_of(operation: Operation, replay: Replay) -> str | None:
    """The Replay that goes before this one."""
    chosen = first_in_line(operation, replay.namespace, replay.spec.queue_ref.name)
    return None if chosen in (None, replay.name) else chosen
