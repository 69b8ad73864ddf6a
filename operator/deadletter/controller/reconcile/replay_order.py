"""Order the Replays of a queue: one runs at a time, a running one first, then the oldest.

A DryRun takes its turn like an Apply, because both write to the ledger: who reads a partition's ledger in order to
settle in it fences the writer before. A Replay that cannot start, because something that it names does not exist, does
not block the others.
"""

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.controller.context import OperatorContext
from deadletter.controller.state.dependents import BY_QUEUE
from deadletter.core import names
from deadletter.core.reasons import Reason
from deadletter.kube import JOBS, REPLAYS, Body
from deadletter.plan.replay_status import RUNNABLE_REASONS


def is_runnable(body: Body) -> bool:
    """True if, by its status, the Replay may run or runs; a new one may."""
    conditions = (body.get("status") or {}).get("conditions", ())
    reason = next((one["reason"] for one in conditions if one["type"] == "Succeeded"), Reason.Queued)
    return reason in RUNNABLE_REASONS


def _takes_part(context: OperatorContext, body: Body) -> bool:
    has_ended = (body.get("status") or {}).get("completionTime") or body["metadata"].get("deletionTimestamp")
    return not has_ended and not body["spec"].get("suspend") and (is_runnable(body) or _is_running(context, body))


def _is_running(context: OperatorContext, body: Body) -> bool:
    meta = body["metadata"]
    job = context.informers[JOBS].get(meta["namespace"], names.child_name(meta["name"], "replay"))
    return job is not None and not job["spec"].get("suspend")


def _sort_key(context: OperatorContext, body: Body) -> tuple[bool, bool, str, str]:
    meta = body["metadata"]
    is_preview = body["spec"].get("mode") == "DryRun"  # it runs before the Apply that waits for it, whichever is older
    return not _is_running(context, body), not is_preview, meta["creationTimestamp"], meta["name"]


def next_replay(context: OperatorContext, namespace: str, queue: str) -> str | None:
    """Return the name of the Replay that runs or runs next."""
    replays = context.informers[REPLAYS].by_index(BY_QUEUE, namespace, queue)
    candidates = [body for body in replays if _takes_part(context, body)]
    chosen = min(candidates, key=lambda body: _sort_key(context, body), default=None)
    return str(chosen["metadata"]["name"]) if chosen else None


def active_replay(context: OperatorContext, queue: DeadLetterQueue) -> str | None:
    """Return the name of the Replay because of which the queue's redrive must pause."""
    return next_replay(context, queue.namespace, queue.name)


def replay_ahead_of(context: OperatorContext, replay: Replay) -> str | None:
    """Return the name of the Replay that this one waits for."""
    chosen = next_replay(context, replay.namespace, replay.spec.queue_ref.name)
    return None if chosen in (None, replay.name) else chosen
