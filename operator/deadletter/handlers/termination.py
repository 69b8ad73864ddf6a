"""The last words of our pods, read from their status when something seems wrong."""

from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.cluster import PODS, Body
from deadletter.core import names
from deadletter.handlers.operation import Operation
from deadletter.plan.endings import words
from deadletter.plan.jobs import labels_of

LONGEST = 4096


async def last_words(operation: Operation, queue: DeadLetterQueue, role: str) -> str:
    """A sentence of a courier's pod that ended, if one did."""
    labels = names.labels(queue.name, role)
    selector = f"deadletter.dev/queue={labels['deadletter.dev/queue']},app.kubernetes.io/component={role}"
    said = words(await _newest(operation, queue.namespace, selector))
    return f"A pod ended: {said['reason']}: {said.get('message', '')}"[:1024] if said.get("reason") else ""


async def replay_words(operation: Operation, replay: Replay) -> str:
    """The termination message of the newest pod of a Replay."""
    labels = labels_of(replay)
    selector = f"deadletter.dev/replay={labels['deadletter.dev/replay']},app.kubernetes.io/component=replay"
    return await _newest(operation, replay.namespace, selector)


async def _newest(operation: Operation, namespace: str, selector: str) -> str:
    pods, _ = await operation.cluster.list(PODS, namespace, selector)
    ended = [(found["finishedAt"] or "", found.get("message") or "") for pod in pods for found in _endings(pod)]
    return max(ended, default=("", ""))[1][:LONGEST]


def _endings(pod: Body) -> list[Body]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [one.get(when) or {} for one in containers for when in ("state", "lastState")]
    return [state["terminated"] for state in states if state.get("terminated")]
