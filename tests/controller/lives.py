"""The whole life of a queue, its policy and its Replays, and what is there at its end."""

import json
import re
from typing import Any

import redis as driver

from tests.controller.operators import Place, until

# Told apart from the rest, or the Deployment controller's business: it never ends a rollout without a node.
PASSING = ("conditions", "observedGeneration", "replicas", "readyReplicas")
KINDS = "bkc,rtp,dlq,rply,configmap,serviceaccount,deployment,job"
DIGEST = re.compile(r'"deadletter.dev/assignment": "[0-9a-f]+"')  # of names that differ between two lives


def spec(source: str, **more: Any) -> dict[str, Any]:
    http = {"url": "http://billing.example/orders"}
    whole = {"source": {"name": source, "group": "billing"}, "delivery": {"http": http}, "deletionPolicy": "Delete"}
    return {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}} | whole | more


def live_a_life(place: Place, redis: str, source: str) -> dict[str, Any]:
    """Create, change the policy, change the queue; the state at the end, without what differs between two lives."""
    place.redis(redis)
    place.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    place.apply("DeadLetterQueue", "orders", spec(source))
    until("courier", lambda: place.get("deployment", "orders-courier"))
    place.apply("RetryPolicy", "standard", {"maxAttempts": 6})
    place.apply("DeadLetterQueue", "orders", spec(source, alerts={"depth": 10}, suspend=True))
    place.apply("Replay", "again", {"queueRef": {"name": "orders"}, "suspend": True})
    place.apply("Replay", "now", {"queueRef": {"name": "orders"}})
    until("job", lambda: place.get("job", "now-replay"))
    until("settled", lambda: is_settled(place))
    return end_state(place, source)


def is_settled(place: Place) -> bool:
    text = place.get("configmap", "orders-courier").get("data", {}).get("assignment.json", "{}")
    status = place.get("dlq", "orders").get("status", {})
    seen = status.get("observedGeneration") == 2 and status.get("depth") == 0
    users = place.get("rtp", "standard").get("status", {}).get("queues") == 1
    users = users and place.get("bkc", "broker").get("status", {}).get("queues") == 1
    replays = [place.condition("rply", name, "Succeeded").get("reason") for name in ("again", "now")]
    paused = json.loads(place.get("configmap", "orders-courier").get("data", {}).get("live.json", "{}")).get("paused")
    told = json.loads(text).get("policy", {}).get("max_attempts") == 6 and paused == "Suspended"
    return bool(seen and users and told and replays == ["Suspended", "Freezing"])


def end_state(place: Place, *replaced: str, of: str = "") -> dict[str, str]:
    """Children and statuses by name, without what is another in each life. `of`: how the names begin."""
    items = json.loads(place.kubectl("get", KINDS, "-o", "json"))["items"]
    hidden = [*(body["metadata"]["uid"] for body in items), *replaced, place.namespace]
    ours = [body for body in items if _is_ours(body) and body["metadata"]["name"].startswith(of)]
    return {_without(_name(body), hidden): _without(_told(body), hidden) for body in ours}


def _is_ours(body: dict[str, Any]) -> bool:
    return body["apiVersion"].startswith("deadletter.dev") or "ownerReferences" in body["metadata"]


def _name(body: dict[str, Any]) -> str:
    return f"{body['kind']}/{body['metadata']['name']}"


def _told(body: dict[str, Any]) -> str:
    kept = [body.get("spec"), body.get("data"), body["metadata"].get("finalizers")]
    if body["apiVersion"].startswith("deadletter.dev"):
        status = body.get("status", {})
        for one in status.get("ownedBoxes", ()):
            one["id"] = bool(one.get("id"))  # another in each life
        kept += [{key: value for key, value in status.items() if key not in PASSING and not key.endswith("Time")}]
        kept += [[one["type"], one["status"], one["reason"], one["message"]] for one in status.get("conditions", ())]
    return json.dumps(kept, sort_keys=True)


def _without(text: str, hidden: list[str]) -> str:
    for word in hidden:
        text = text.replace(word, "...")
    return DIGEST.sub("...", text)


def die(place: Place, redis: str, source: str) -> None:
    """The queue goes, and its children, its finalizer and its boxes with it."""
    place.kubectl("delete", "rply", "--all", "--timeout=120s")
    place.kubectl("delete", "dlq", "orders", "--timeout=120s")
    until("collected", lambda: not place.get("deployment", "orders-courier"))
    with driver.Redis.from_url(redis) as client:
        until("no box is left", lambda: not list(client.scan_iter(f"*{source}*dlq*")))
