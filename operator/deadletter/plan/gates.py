"""The gate of a worker that runs on while something its queue names is missing or away."""

from collections.abc import Mapping, Sequence
from typing import Any

from deadletter.api.assignments import Live
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.degraded import pause
from deadletter.plan.facts import QueueFacts
from deadletter.plan.pod_template import Manifest
from deadletter.plan.worker_manifests import role_of


def plan_gate(
    queue: DeadLetterQueue, facts: QueueFacts, told: Sequence[Mapping[str, Any]], redriving: bool
) -> list[Manifest]:
    """What its worker was told, with the pause of now: a queue pauses whatever else is wrong with it."""
    role = role_of(queue)
    name = names.child(queue.name, role) if role else ""
    kept: Mapping[str, str] = next((one["data"] for one in told if role and one["metadata"]["name"] == name), {})
    if role is None or pod_template.ASSIGNMENT not in kept:
        return []
    live = pod_template.written(Live(paused=pause(queue, facts.reading, redriving), redaction=queue.spec.redaction))
    head = pod_template.owned("ConfigMap", "v1", queue, name, names.labels(queue.name, role))
    return [head | {"data": {pod_template.ASSIGNMENT: kept[pod_template.ASSIGNMENT], pod_template.LIVE: live}}]
