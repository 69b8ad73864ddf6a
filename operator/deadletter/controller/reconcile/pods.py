"""Read the pods of a worker when something is wrong: how its containers ended, or why one does not start."""

from collections.abc import Mapping
from typing import Any

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import OperatorContext
from deadletter.core import names, times
from deadletter.kube import PODS, Body
from deadletter.plan.facts import PodExit
from deadletter.plan.replay_outcome import read_termination_message

MAX_PROBLEM_CHARACTERS = 1024
MAX_TERMINATION_CHARACTERS = 4096  # the kubelet's limit of a termination message
NORMAL_WAITING_REASONS = (None, "ContainerCreating", "PodInitializing")


async def pods_of_queue(context: OperatorContext, queue: DeadLetterQueue, role: str) -> list[Body]:
    """List the pods of a queue's courier or redrive."""
    labels = names.labels(queue.name, role)
    selector = f"deadletter.dev/queue={labels['deadletter.dev/queue']},app.kubernetes.io/component={role}"
    return (await context.kube.list(PODS, queue.namespace, selector))[0]


async def pods_of_job(context: OperatorContext, job: Mapping[str, Any]) -> list[Body]:
    """List the pods of a Job."""
    meta = job["metadata"]
    selector = f"batch.kubernetes.io/controller-uid={meta['uid']}"
    return (await context.kube.list(PODS, meta["namespace"], selector))[0]


def describe_problem(pods: list[Body]) -> str:
    """Return a sentence about the container that failed last, or else about a pod that does not start."""
    exits = container_exits(pods)
    return ((_describe_exit(exits[-1]) if exits else "") or waiting_reason(pods))[:MAX_PROBLEM_CHARACTERS]


def _describe_exit(pod_exit: PodExit) -> str:
    message = read_termination_message(pod_exit.message)
    if message.get("reason"):
        return f"A pod ended: {message['reason']}: {message.get('message', '')}"
    return f"A pod ended: {pod_exit.reason}, exit code {pod_exit.code}." if pod_exit.code else ""


def container_exits(pods: list[Body]) -> tuple[PodExit, ...]:
    """Return how the containers of these pods ended, the newest last."""
    exits = [_to_exit(state) for pod in pods for state in _terminated_states(pod)]
    return tuple(sorted(exits, key=lambda pod_exit: pod_exit.at))


def waiting_reason(pods: list[Body]) -> str:
    """Return why a pod does not run, in the kubelet's or the scheduler's words, or an empty string."""
    for pod in pods:
        for container in _container_statuses(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in NORMAL_WAITING_REASONS:
                return f"A pod is waiting: {waiting['reason']}: {waiting.get('message', '')}"
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                return f"A pod is waiting: {condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _container_statuses(pod: Body) -> list[Body]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _terminated_states(pod: Body) -> list[Body]:
    states = [one.get(when) or {} for one in _container_statuses(pod) for when in ("state", "lastState")]
    return [state["terminated"] for state in states if state.get("terminated")]


def _to_exit(terminated: Body) -> PodExit:
    at = times.parse(terminated["finishedAt"]) if terminated.get("finishedAt") else 0
    message = (terminated.get("message") or "")[:MAX_TERMINATION_CHARACTERS]
    return PodExit(at, terminated.get("exitCode") or 0, terminated.get("reason") or "", message)
