"""The gate of a worker that runs on while something its queue names is missing or away."""

from collections.abc import Mapping, Sequence
from typing import Any

from deadletter.api.assignments import LiveConfig
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core import names
from deadletter.plan import pod_template
from deadletter.plan.degraded import worker_pause_reason
from deadletter.plan.facts import QueueFacts
from deadletter.plan.pod_template import Manifest
from deadletter.plan.worker_manifests import worker_role


def plan_live_config(
    queue: DeadLetterQueue, facts: QueueFacts, told: Sequence[Mapping[str, Any]], may_redrive: bool
) -> list[Manifest]:
    """What its worker was told, with the pause of now: a queue pauses whatever else is wrong with it."""
    role = worker_role(queue)
    name = names.child_name(queue.name, role) if role else ""
    kept: Mapping[str, str] = next((one["data"] for one in told if role and one["metadata"]["name"] == name), {})
    if role is None or pod_template.ASSIGNMENT_KEY not in kept:
        return []
    live = pod_template.to_json(LiveConfig(paused=worker_pause_reason(queue, facts.stats, may_redrive), redaction=queue.spec.redaction))
    head = pod_template.child_manifest("ConfigMap", "v1", queue, name, names.labels(queue.name, role))
    return [head | {"data": {pod_template.ASSIGNMENT_KEY: kept[pod_template.ASSIGNMENT_KEY], pod_template.LIVE_KEY: live}}]
