"""What our pods' statuses tell when something seems wrong: how one ended, its last words, or why one waits."""

from collections.abc import Mapping
from typing import Any

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import OperatorContext
from deadletter.core import names, times
from deadletter.kube import PODS, Body
from deadletter.plan.facts import PodExit
from deadletter.plan.replay_result import read_termination_message

MAX_MESSAGE_CHARACTERS = 4096
NORMAL_WAITING_REASONS = (None, "ContainerCreating", "PodInitializing")


async def pods_of_queue(context: OperatorContext, queue: DeadLetterQueue, role: str) -> list[Body]:
    """The pods of its courier or redrive."""
    labels = names.labels(queue.name, role)
    selector = f"deadletter.dev/queue={labels['deadletter.dev/queue']},app.kubernetes.io/component={role}"
    return (await context.kube.list(PODS, queue.namespace, selector))[0]


async def pods_of_job(context: OperatorContext, job: Mapping[str, Any]) -> list[Body]:
    """The pods of a Job."""
    meta = job["metadata"]
    selector = f"batch.kubernetes.io/controller-uid={meta['uid']}"
    return (await context.kube.list(PODS, meta["namespace"], selector))[0]


def describe_problem(pods: list[Body]) -> str:
    """A sentence about the pod that ended last, or about one that cannot start."""
    ended = container_exits(pods)
    return ((_describe_exit(ended[-1]) if ended else "") or waiting_reason(pods))[:1024]


def _describe_exit(one: PodExit) -> str:
    said = read_termination_message(one.message)
    if said.get("reason"):
        return f"A pod ended: {said['reason']}: {said.get('message', '')}"
    return f"A pod ended: {one.reason}, exit code {one.code}." if one.code else ""


def container_exits(pods: list[Body]) -> tuple[PodExit, ...]:
    """How containers of these pods ended, the newest last."""
    return tuple(sorted((_to_exit(found) for pod in pods for found in _terminated_states(pod)), key=lambda one: one.at))


def waiting_reason(pods: list[Body]) -> str:
    """Why a pod does not run, in the kubelet's or the scheduler's words."""
    for pod in pods:
        for one in _container_statuses(pod):
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in NORMAL_WAITING_REASONS:
                return f"A pod waits: {waiting['reason']}: {waiting.get('message', '')}"
        for one in (pod.get("status") or {}).get("conditions") or ():
            if (one["type"], one["status"]) == ("PodScheduled", "False"):
                return f"A pod waits: {one.get('reason', '')}: {one.get('message', '')}"
    return ""


def _container_statuses(pod: Body) -> list[Body]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _terminated_states(pod: Body) -> list[Body]:
    states = [one.get(when) or {} for one in _container_statuses(pod) for when in ("state", "lastState")]
    return [state["terminated"] for state in states if state.get("terminated")]


def _to_exit(found: Body) -> PodExit:
    at = times.parse(found["finishedAt"]) if found.get("finishedAt") else 0
    message = (found.get("message") or "")[:MAX_MESSAGE_CHARACTERS]
    return PodExit(at, found.get("exitCode") or 0, found.get("reason") or "", message)
