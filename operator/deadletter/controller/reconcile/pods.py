"""What our pods' statuses tell when something seems wrong: how one ended, its last words, or why one waits."""

from collections.abc import Mapping
from typing import Any

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import Operation
from deadletter.core import names, times
from deadletter.kube import PODS, Body
from deadletter.plan.facts import Exit
from deadletter.plan.replay_result import words

LONGEST = 4096
STARTING = (None, "ContainerCreating", "PodInitializing")


async def pods_of_queue(operation: Operation, queue: DeadLetterQueue, role: str) -> list[Body]:
    """The pods of its courier or redrive."""
    labels = names.labels(queue.name, role)
    selector = f"deadletter.dev/queue={labels['deadletter.dev/queue']},app.kubernetes.io/component={role}"
    return (await operation.cluster.list(PODS, queue.namespace, selector))[0]


async def pods_of_job(operation: Operation, job: Mapping[str, Any]) -> list[Body]:
    """The pods of a Job."""
    meta = job["metadata"]
    selector = f"batch.kubernetes.io/controller-uid={meta['uid']}"
    return (await operation.cluster.list(PODS, meta["namespace"], selector))[0]


def trouble(pods: list[Body]) -> str:
    """A sentence about the pod that ended last, or about one that cannot start."""
    ended = exits(pods)
    return ((_told(ended[-1]) if ended else "") or waits(pods))[:1024]


def _told(one: Exit) -> str:
    said = words(one.message)
    if said.get("reason"):
        return f"A pod ended: {said['reason']}: {said.get('message', '')}"
    return f"A pod ended: {one.reason}, exit code {one.code}." if one.code else ""


def exits(pods: list[Body]) -> tuple[Exit, ...]:
    """How containers of these pods ended, the newest last."""
    return tuple(sorted((_exit(found) for pod in pods for found in _endings(pod)), key=lambda one: one.at))


def waits(pods: list[Body]) -> str:
    """Why a pod does not run, in the kubelet's or the scheduler's words."""
    for pod in pods:
        for one in _containers(pod):
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in STARTING:
                return f"A pod waits: {waiting['reason']}: {waiting.get('message', '')}"
        for one in (pod.get("status") or {}).get("conditions") or ():
            if (one["type"], one["status"]) == ("PodScheduled", "False"):
                return f"A pod waits: {one.get('reason', '')}: {one.get('message', '')}"
    return ""


def _containers(pod: Body) -> list[Body]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _endings(pod: Body) -> list[Body]:
    states = [one.get(when) or {} for one in _containers(pod) for when in ("state", "lastState")]
    return [state["terminated"] for state in states if state.get("terminated")]


def _exit(found: Body) -> Exit:
    at = times.parse(found["finishedAt"]) if found.get("finishedAt") else 0
    message = (found.get("message") or "")[:LONGEST]
    return Exit(at, found.get("exitCode") or 0, found.get("reason") or "", message)
