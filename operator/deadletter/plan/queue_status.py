"""The status of a queue, computed from facts and findings."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.kinds import Condition
from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import names, times
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import Saying, claim, put
from deadletter.plan.consumer_group import consumer_group
from deadletter.plan.degraded import degraded, loss_time, utilization
from deadletter.plan.facts import QueueFacts, Reading
from deadletter.plan.findings import BOXES, COURIER, REFERENCES, Finding

DEFAULT_POLICY = "default"
GROUPS = 10
NUMBERS = ("depth", "groups", "depthIsUpperBound", "oldestLetterTime", "retentionLossTime", "utilization")


def queue_status(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> dict[str, Any]:
    """The whole status as it stands in the object. `found`: the objection that stopped the carrying out."""
    status: dict[str, Any] = {"observedGeneration": queue.generation}
    conditions = put(queue.status.conditions, sayings(queue, facts, found), queue.generation, facts.now)
    status["conditions"] = [one.to_wire() for one in conditions]
    if facts.connection is not None:
        boxes = queue.boxes(facts.connection.spec.is_redis)
        status["boxes"] = boxes.model_dump(exclude_none=True)
    owned = queue.status.owned_boxes if facts.owned is None else facts.owned
    status |= {"ownedBoxes": [one.to_wire() for one in owned]} if owned else {}
    group = consumer_group(queue, facts)
    status |= {"consumerGroup": group} if group else {}
    status |= _policy(queue, facts) | _replicas(queue, facts) | numbers(queue, facts) | _loss(facts)
    return status


def sayings(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> list[Saying]:
    """What there is to say, Ready first."""
    parts = [_part(REFERENCES, Reason.AllFound, found), _boxes(found), _courier(queue, facts, found)]
    ready = _ready(queue, parts, found)
    stuck = found is not None and not found.heals
    progress = claim("Reconciling", ready.status != "True" and not stuck, ready.reason, ready.message)
    stalled = claim(
        "Stalled",
        stuck,
        found.reason if found and stuck else Reason.AsExpected,
        found.message if found and stuck else "",
    )
    return [ready, *parts, degraded(queue, facts), progress, stalled]


def _part(kind: str, fine: Reason, found: Finding | None) -> Saying:
    if found is not None and found.condition == kind:
        return claim(kind, False, found.reason, found.message)
    return claim(kind, True, fine)


def _boxes(found: Finding | None) -> Saying:
    if found is not None and found.condition not in (BOXES, COURIER):
        return claim(BOXES, None, Reason.Pending)
    return _part(BOXES, Reason.BoxesFound, found)


def _courier(queue: DeadLetterQueue, facts: QueueFacts, found: Finding | None) -> Saying:
    if queue.shape != "Delivered":
        return claim(COURIER, True, Reason.NoCourierNeeded)
    if found is not None and found.condition == COURIER:
        return claim(COURIER, False, found.reason, found.message)
    if found is not None and facts.deployment is None:
        return claim(COURIER, None, Reason.Pending)
    wanted, available = queue.spec.delivery.replicas if queue.spec.delivery else 0, _count(facts, "availableReplicas")
    if available >= 1 or (wanted == 0 and facts.deployment is not None):
        return claim(COURIER, True, Reason.CourierAvailable)
    return claim(COURIER, False, Reason.WaitingForCourier, facts.pod_says or "No pod of the courier is available yet.")


def replica_failure(deployment: Mapping[str, Any]) -> str:
    """Why no pod is made: a quota, or an admission policy."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    failed = [one for one in conditions if (one["type"], one["status"]) == ("ReplicaFailure", "True")]
    return f"No pod is made: {failed[0].get('message', '')}" if failed else ""


def _count(facts: QueueFacts, name: str) -> int:
    return int((facts.deployment or {}).get("status", {}).get(name) or 0)


def _ready(queue: DeadLetterQueue, parts: list[Saying], found: Finding | None) -> Saying:
    if found is not None:
        return claim("Ready", False, found.reason, found.message)
    bad = next((part for part in parts if part.status != "True"), None)
    if bad is not None:
        return claim("Ready", False, bad.reason, bad.message)
    if queue.spec.suspend:
        return claim("Ready", True, Reason.Suspended, "spec.suspend is true.")
    return claim("Ready", True, Reason.Adopted if queue.spec.dead.adopt else Reason.Reconciled)


def _policy(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    if queue.spec.retry_policy_ref is not None and facts.policy is None:
        return {"policy": queue.status.policy.to_wire()} if queue.status.policy else {}
    spec = facts.policy.spec if facts.policy else RetryPolicySpec()
    return {"policy": {"name": facts.policy.name if facts.policy else DEFAULT_POLICY, "hash": digest(spec)}}


def digest(spec: RetryPolicySpec) -> str:
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
    return {"lostParkedLetters": loss.letters, "lostParkedLettersTime": second(loss.at)} if loss else {}


def numbers(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, Any]:
    """Depth, oldest, groups; as long as nothing newer was read, what was last known."""
    reading = facts.reading
    if reading is None or not reading.caught_up:
        told = queue.status.to_wire()
        return {name: told[name] for name in NUMBERS if name in told} if "depth" in told else {}
    out: dict[str, Any] = {"depth": reading.depth, "groups": groups(reading)}
    out |= {"depthIsUpperBound": True} if reading.upper_bound else {}
    out |= {"oldestLetterTime": second(reading.oldest)} if reading.oldest is not None else {}
    loss, used = loss_time(facts), utilization(queue, reading)
    out |= {"retentionLossTime": second(loss)} if loss is not None else {}
    return out | ({"utilization": used} if used is not None else {})


def second(moment: int) -> str:
    """A time cut to its second."""
    return times.render(times.bounded(moment) // 1000 * 1000)


def groups(reading: Reading) -> list[dict[str, Any]]:
    """The ten largest groups, the largest first."""
    largest = sorted(reading.groups, key=lambda group: (-group.letters, group.fingerprint))[:GROUPS]
    return [
        {
            "fingerprint": group.fingerprint,
            "errorType": group.error_type[:256],
            "category": group.category,
            "letters": group.letters,
            "firstSeenTime": second(group.first_seen),
            "lastSeenTime": second(group.last_seen),
        }
        for group in largest
    ]


def conditions_of(status: dict[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a status as models."""
    return tuple(Condition.model_validate(one) for one in status.get("conditions", ()))
