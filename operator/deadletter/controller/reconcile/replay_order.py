"""Who may act on a queue: one Replay at a time, the oldest first; a running one before all.

A DryRun stands in the same line: whoever reads a partition's ledger to settle in it fences the one before. One that
cannot begin, because something it names is missing, holds nobody back; once it can, it joins the pooled.
"""

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.controller.context import OperatorContext
from deadletter.controller.state.dependents import BY_QUEUE
from deadletter.core import names
from deadletter.core.reasons import Reason
from deadletter.kube import JOBS, REPLAYS, Body
from deadletter.plan.replay_status import RUNNABLE_REASONS


def is_in_line(body: Body) -> bool:
    """Is it in the line, as far as its status tells? A new one is."""
    conditions = (body.get("status") or {}).get("conditions", ())
    said = next((one["reason"] for one in conditions if one["type"] == "Succeeded"), Reason.Queued)
    return said in RUNNABLE_REASONS


def _is_waiting(context: OperatorContext, body: Body) -> bool:
    ended = (body.get("status") or {}).get("completionTime") or body["metadata"].get("deletionTimestamp")
    return not ended and not body["spec"].get("suspend") and (is_in_line(body) or _is_running(context, body))


def _is_running(context: OperatorContext, body: Body) -> bool:
    meta = body["metadata"]
    job = context.informers[JOBS].get(meta["namespace"], names.child_name(meta["name"], "replay"))
    return job is not None and not job["spec"].get("suspend")


def _sort_key(context: OperatorContext, body: Body) -> tuple[bool, bool, str, str]:
    meta = body["metadata"]
    # A preview before the Apply that waits for it, whichever was written first.
    preview = body["spec"].get("mode") == "DryRun"
    return not _is_running(context, body), not preview, meta["creationTimestamp"], meta["name"]


def next_replay(context: OperatorContext, namespace: str, queue: str) -> str | None:
    """The Replay that runs, or the next one to."""
    waiting = [body for body in context.informers[REPLAYS].by_index(BY_QUEUE, namespace, queue) if _is_waiting(context, body)]
    chosen = min(waiting, key=lambda body: _sort_key(context, body), default=None)
    return str(chosen["metadata"]["name"]) if chosen else None


def active_replay(context: OperatorContext, queue: DeadLetterQueue) -> str | None:
    """The Replay that keeps a standing redrive from acting."""
    return next_replay(context, queue.namespace, queue.name)


def replay_ahead_of(context: OperatorContext, replay: Replay) -> str | None:
    """The Replay that goes before this one."""
    chosen = next_replay(context, replay.namespace, replay.spec.queue_ref.name)
    return None if chosen in (None, replay.name) else chosen
