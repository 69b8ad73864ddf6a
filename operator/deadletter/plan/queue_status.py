"""The status of a queue, computed from facts and findings."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.kinds import Condition
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import names, times
from deadletter.core.box_stats import BoxStats
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import ConditionUpdate, condition, merge_conditions
from deadletter.plan.consumer_group import consumer_group_status
from deadletter.plan.degraded import degraded_condition, retention_loss_time, utilization_percent
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import BOXES, COURIER, REFERENCES, Finding

DEFAULT_POLICY = "default"
MAX_GROUPS = 10
NUMBER_FIELDS = ("depth", "groups", "depthIsUpperBound", "oldestLetterTime", "retentionLossTime", "utilization")


def queue_status(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> dict[str, Any]:
    """The whole status as it stands in the object. `found`: the objection that stopped the carrying out."""
    status: dict[str, Any] = {"observedGeneration": queue.generation}
    conditions = merge_conditions(queue.status.conditions, queue_conditions(queue, facts, found), queue.generation, facts.now)
    status["conditions"] = [one.to_wire() for one in conditions]
    if facts.connection is not None:
        boxes = queue.boxes(facts.connection.spec.is_redis)
        status["boxes"] = boxes.model_dump(exclude_none=True)
    owned = queue.status.owned_boxes if facts.owned_boxes is None else facts.owned_boxes
    status |= {"ownedBoxes": [one.to_wire() for one in owned]} if owned else {}
    group = consumer_group_status(queue, facts)
    status |= {"consumerGroup": group} if group else {}
    status |= _policy(queue, facts) | _replicas(queue, facts) | letter_numbers(queue, facts) | _loss(facts)
    return status


def queue_conditions(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> list[ConditionUpdate]:
    """What there is to say, Ready first."""
    parts = [_part(REFERENCES, Reason.AllFound, found), _boxes(found), _courier(queue, facts, found)]
    ready = _ready(queue, parts, found)
    stuck = found is not None and not found.is_transient
    progress = condition("Reconciling", ready.status != "True" and not stuck, ready.reason, ready.message)
    stalled = condition(
        "Stalled",
        stuck,
        found.reason if found and stuck else Reason.AsExpected,
        found.message if found and stuck else "",
    )
    return [ready, *parts, degraded_condition(queue, facts), progress, stalled]


def _part(kind: str, fine: Reason, found: Finding | None) -> ConditionUpdate:
    if found is not None and found.condition == kind:
        return condition(kind, False, found.reason, found.message)
    return condition(kind, True, fine)


def _boxes(found: Finding | None) -> ConditionUpdate:
    if found is not None and found.condition not in (BOXES, COURIER):
        return condition(BOXES, None, Reason.Pending)
    return _part(BOXES, Reason.BoxesFound, found)


def _courier(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> ConditionUpdate:
    if queue.shape != "Delivered":
        return condition(COURIER, True, Reason.NoCourierNeeded)
    if found is not None and found.condition == COURIER:
        return condition(COURIER, False, found.reason, found.message)
    if found is not None and facts.deployment is None:
        return condition(COURIER, None, Reason.Pending)
    wanted, available = queue.spec.delivery.replicas if queue.spec.delivery else 0, _count(facts, "availableReplicas")
    if available >= 1 or (wanted == 0 and facts.deployment is not None):
        return condition(COURIER, True, Reason.CourierAvailable)
    return condition(COURIER, False, Reason.WaitingForCourier, facts.pod_problem or "No pod of the courier is available yet.")


def replica_failure_message(deployment: Mapping[str, Any]) -> str:
    """Why no pod is made: a quota, or an admission policy."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    failed = [one for one in conditions if (one["type"], one["status"]) == ("ReplicaFailure", "True")]
    return f"No pod is made: {failed[0].get('message', '')}" if failed else ""


def _count(facts: QueueFacts, name: str) -> int:
    return int((facts.deployment or {}).get("status", {}).get(name) or 0)


def _ready(queue: DeadLetterQueue, parts: list[ConditionUpdate], found: Finding | None) -> ConditionUpdate:
    if found is not None:
        return condition("Ready", False, found.reason, found.message)
    bad = next((part for part in parts if part.status != "True"), None)
    if bad is not None:
        return condition("Ready", False, bad.reason, bad.message)
    if queue.spec.suspend:
        return condition("Ready", True, Reason.Suspended, "spec.suspend is true.")
    return condition("Ready", True, Reason.Adopted if queue.spec.dead.adopt else Reason.Reconciled)


def _policy(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    if queue.spec.retry_policy_ref is not None and facts.policy is None:
        return {"policy": queue.status.policy.to_wire()} if queue.status.policy else {}
    spec = facts.policy.spec if facts.policy else RetryPolicySpec()
    return {"policy": {"name": facts.policy.name if facts.policy else DEFAULT_POLICY, "hash": policy_hash(spec)}}


def policy_hash(spec: RetryPolicySpec) -> str:
    """Changes when the policy does."""
    return sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()[:12]


def _replicas(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    if queue.shape != "Delivered" or facts.deployment is None:
        return {}
    chosen = names.labels(queue.name, "courier")
    selector = f"deadletter.dev/queue={chosen['deadletter.dev/queue']},app.kubernetes.io/component=courier"
    return {
        "replicas": _count(facts, "replicas"),
        "readyReplicas": _count(facts, "readyReplicas"),
        "selector": selector,
    }


def _loss(facts: QueueFacts) -> dict[str, Any]:
    loss = facts.loss
    return {"lostParkedLetters": loss.letters, "lostParkedLettersTime": render_second(loss.at)} if loss else {}


def letter_numbers(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    """Depth, oldest, groups; as long as nothing newer was read, what was last known."""
    reading = facts.stats
    if reading is None or not reading.caught_up:
        told = queue.status.to_wire()
        return {name: told[name] for name in NUMBER_FIELDS if name in told} if "depth" in told else {}
    out: dict[str, Any] = {"depth": reading.depth, "groups": largest_groups(reading)}
    out |= {"depthIsUpperBound": True} if reading.upper_bound else {}
    out |= {"oldestLetterTime": render_second(reading.oldest)} if reading.oldest is not None else {}
    loss, used = retention_loss_time(facts), utilization_percent(queue, reading)
    out |= {"retentionLossTime": render_second(loss)} if loss is not None else {}
    return out | ({"utilization": used} if used is not None else {})


def render_second(moment: int) -> str:
    """A time cut to its second."""
    return times.render(times.clamp(moment) // 1000 * 1000)


def largest_groups(reading: BoxStats) -> list[dict[str, Any]]:
    """The ten largest groups, the largest first."""
    largest = sorted(reading.groups, key=lambda group: (-group.letters, group.fingerprint))[:MAX_GROUPS]
    return [
        {
            "fingerprint": group.fingerprint,
            "errorType": group.error_type[:256],
            "category": group.category,
            "letters": group.letters,
            "firstSeenTime": render_second(group.first_seen),
            "lastSeenTime": render_second(group.last_seen),
        }
        for group in largest
    ]


def parse_conditions(status: dict[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a status as models."""
    return tuple(Condition.model_validate(one) for one in status.get("conditions", ()))
