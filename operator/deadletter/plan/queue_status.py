"""Compute the status of a queue from facts and findings."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from deadletter.api.custom_resource import Condition
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import names, times
from deadletter.core.box_types import BoxStats
from deadletter.core.condition_types import (
    BOXES_READY,
    COURIER_AVAILABLE,
    READY,
    RECONCILING,
    REFERENCES_RESOLVED,
    STALLED,
)
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import ConditionUpdate, condition, merge_conditions
from deadletter.plan.degraded import degraded_condition, retention_loss_time, utilization_percent
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding

DEFAULT_POLICY = "default"
MAX_GROUPS = 10
MAX_ERROR_TYPE_CHARACTERS = 256
NUMBER_FIELDS = ("depth", "groups", "depthIsUpperBound", "oldestLetterTime", "retentionLossTime", "utilization")


def queue_status(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> dict[str, Any]:
    """Return the whole status as stored in the object. `found`: the problem that stopped the reconciliation."""
    updates = queue_conditions(queue, facts, found)
    conditions = merge_conditions(queue.status.conditions, updates, queue.generation, facts.now)
    status: dict[str, Any] = {
        "observedGeneration": queue.generation,
        "conditions": [one.to_wire() for one in conditions],
    }
    if facts.connection is not None:
        boxes = queue.boxes(facts.connection.spec.is_redis)
        status["boxes"] = boxes.model_dump(exclude_none=True)
    owned = queue.status.owned_boxes if facts.owned_boxes is None else facts.owned_boxes
    status |= {"ownedBoxes": [one.to_wire() for one in owned]} if owned else {}
    group = consumer_group_status(queue, facts)
    status |= {"consumerGroup": group} if group else {}
    return status | _policy(queue, facts) | _replicas(queue, facts) | letter_numbers(queue, facts) | _loss(facts)


def consumer_group_status(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, str] | None:
    """Return the started consumer group as the status shows it; None if no courier has worked with it yet.

    A courier writes its heartbeat only after the group has an offset of every partition, so one heartbeat is proof.
    """
    source = queue.spec.source
    if source is None or queue.spec.delivery is None:
        return None
    known = queue.status.consumer_group
    if known is not None and (known.name, known.source) == (source.group, source.name):
        return {"name": known.name, "source": known.source, "startedTime": known.started_time}
    if facts.stats is None or not facts.stats.couriers:
        return None
    return {"name": source.group, "source": source.name, "startedTime": times.render_second(facts.now)}


def queue_conditions(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> list[ConditionUpdate]:
    """Return all conditions of a queue, Ready first."""
    references = _referred(REFERENCES_RESOLVED, Reason.AllFound, found)
    parts = [references, _boxes_ready(found), _courier_available(queue, facts, found)]
    ready = _ready(queue, parts, found)
    is_stalled = found is not None and not found.is_transient
    reason, message = (found.reason, found.message) if found and is_stalled else (Reason.AsExpected, "")
    return [
        ready,
        *parts,
        degraded_condition(queue, facts),
        condition(RECONCILING, ready.status != "True" and not is_stalled, ready.reason, ready.message),
        condition(STALLED, is_stalled, reason, message),
    ]


def _referred(kind: str, fine: Reason, found: Finding | None) -> ConditionUpdate:
    """Return a condition that is False exactly if the finding refers to it."""
    if found is not None and found.condition == kind:
        return condition(kind, False, found.reason, found.message)
    return condition(kind, True, fine)


def _unchecked(kind: str, found: Finding) -> ConditionUpdate:
    return condition(kind, None, Reason.Pending, f"Not checked until this is solved: {found.message}")


def _boxes_ready(found: Finding | None) -> ConditionUpdate:
    if found is not None and found.condition not in (BOXES_READY, COURIER_AVAILABLE):
        return _unchecked(BOXES_READY, found)
    return _referred(BOXES_READY, Reason.BoxesFound, found)


def _courier_available(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> ConditionUpdate:
    if queue.shape != "Delivered":
        return condition(COURIER_AVAILABLE, True, Reason.NoCourierNeeded)
    if found is not None and found.condition == COURIER_AVAILABLE:
        return condition(COURIER_AVAILABLE, False, found.reason, found.message)
    if found is not None and facts.deployment is None:
        return _unchecked(COURIER_AVAILABLE, found)
    wanted = queue.spec.delivery.replicas if queue.spec.delivery else 0
    if _replica_count(facts, "availableReplicas") >= 1 or (wanted == 0 and facts.deployment is not None):
        return condition(COURIER_AVAILABLE, True, Reason.CourierAvailable)
    deployment = names.child_name(queue.name, "courier")
    message = (
        facts.pod_problem or f"No pod of Deployment {deployment} is available yet; describe its pods if this lasts."
    )
    return condition(COURIER_AVAILABLE, False, Reason.WaitingForCourier, message)


def replica_failure_message(deployment: Mapping[str, Any]) -> str:
    """Return why a Deployment cannot create pods, such as a quota or an admission policy, or an empty string."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    failed = [one for one in conditions if (one["type"], one["status"]) == ("ReplicaFailure", "True")]
    return f"The Deployment cannot create pods: {failed[0].get('message', '')}" if failed else ""


def _replica_count(facts: QueueFacts, name: str) -> int:
    return int((facts.deployment or {}).get("status", {}).get(name) or 0)


def _ready(queue: DeadLetterQueue, parts: list[ConditionUpdate], found: Finding | None) -> ConditionUpdate:
    if found is not None:
        return condition(READY, False, found.reason, found.message)
    failed = next((part for part in parts if part.status != "True"), None)
    if failed is not None:
        return condition(READY, False, failed.reason, failed.message)
    if queue.spec.suspend:
        return condition(READY, True, Reason.Suspended, "spec.suspend is true; set it to false to go on.")
    return condition(READY, True, Reason.Adopted if queue.spec.dead.adopt else Reason.Reconciled)


def _policy(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    if queue.spec.retry_policy_ref is not None and facts.policy is None:
        return {"policy": queue.status.policy.to_wire()} if queue.status.policy else {}
    spec = facts.policy.spec if facts.policy else RetryPolicySpec()
    return {"policy": {"name": facts.policy.name if facts.policy else DEFAULT_POLICY, "hash": policy_hash(spec)}}


def policy_hash(spec: RetryPolicySpec) -> str:
    """Return a hash that changes when the policy changes."""
    return sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()[:12]


def _replicas(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    if queue.shape != "Delivered" or facts.deployment is None:
        return {}
    queue_label = names.labels(queue.name, "courier")["deadletter.dev/queue"]
    return {
        "replicas": _replica_count(facts, "replicas"),
        "readyReplicas": _replica_count(facts, "readyReplicas"),
        "selector": f"deadletter.dev/queue={queue_label},app.kubernetes.io/component=courier",
    }


def _loss(facts: QueueFacts) -> dict[str, Any]:
    if facts.loss is None:
        return {}
    return {
        "lostParkedLetters": facts.loss.letters,
        "lostParkedLettersTime": times.render_second(facts.loss.at),
    }


def letter_numbers(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    """Return depth, oldest letter and groups; without new statistics, those of the last status."""
    stats = facts.stats
    if stats is None or not stats.caught_up:
        known = queue.status.to_wire()
        return {name: known[name] for name in NUMBER_FIELDS if name in known} if "depth" in known else {}
    numbers: dict[str, Any] = {"depth": stats.depth, "groups": largest_groups(stats)}
    if stats.upper_bound:
        numbers["depthIsUpperBound"] = True
    if stats.oldest is not None:
        numbers["oldestLetterTime"] = times.render_second(stats.oldest)
    if (lost_at := retention_loss_time(facts)) is not None:
        numbers["retentionLossTime"] = times.render_second(lost_at)
    if (used := utilization_percent(queue, stats)) is not None:
        numbers["utilization"] = used
    return numbers


def largest_groups(stats: BoxStats) -> list[dict[str, Any]]:
    """Return the ten largest failure groups, the largest first."""
    largest = sorted(stats.groups, key=lambda group: (-group.letters, group.fingerprint))[:MAX_GROUPS]
    return [
        {
            "fingerprint": group.fingerprint,
            "errorType": group.error_type[:MAX_ERROR_TYPE_CHARACTERS],
            "category": group.category,
            "letters": group.letters,
            "firstSeenTime": times.render_second(group.first_seen),
            "lastSeenTime": times.render_second(group.last_seen),
        }
        for group in largest
    ]


def parse_conditions(status: dict[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions of a stored status as models."""
    return tuple(Condition.model_validate(one) for one in status.get("conditions", ()))
