"""The last words of our pods, read from their status when something seems wrong."""

from collections.abc import Mapping
from typing import Any

from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.cluster import PODS, Body
from deadletter.core import names, times
from deadletter.handlers.operation import Operation
from deadletter.plan.endings import words
from deadletter.plan.facts import Exit

LONGEST = 4096


async def last_words(operation: Operation, queue: DeadLetterQueue, role: str) -> str:
    """A sentence of a courier's pod that ended, if one did."""
    labels = names.labels(queue.name, role)
    selector = f"deadletter.dev/queue={labels['deadletter.dev/queue']},app.kubernetes.io/component={role}"
    ended = await _exits(operation, queue.namespace, selector)
    said = words(ended[-1].message) if ended else {}
    return f"A pod ended: {said['reason']}: {said.get('message', '')}"[:1024] if said.get("reason") else ""


async def job_exits(operation: Operation, job: Mapping[str, Any]) -> tuple[Exit, ...]:
    """How the pods of a Job ended, the newest last."""
    meta = job["metadata"]
    return await _exits(operation, meta["namespace"], f"batch.kubernetes.io/controller-uid={meta['uid']}")


async def _exits(operation: Operation, namespace: str, selector: str) -> tuple[Exit, ...]:
    pods, _ = await operation.cluster.list(PODS, namespace, selector)
    return tuple(sorted((_exit(found) for pod in pods for found in _endings(pod)), key=lambda one: one.at))


def _endings(pod: Body) -> list[Body]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [one.get(when) or {} for one in containers for when in ("state", "lastState")]
    return [state["terminated"] for state in states if state.get("terminated")]


def _exit(found: Body) -> Exit:
    at = times.parse(found["finishedAt"]) if found.get("finishedAt") else 0
    message = (found.get("message") or "")[:LONGEST]
    return Exit(at, found.get("exitCode") or 0, found.get("reason") or "", message)
