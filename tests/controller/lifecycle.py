"""Create, change and delete a queue with its policy and Replays, and compare the final states of two such runs."""

import json
import re
from typing import Any

import redis as driver

from tests.controller.operator_process import KubeNamespace, wait_until

# Compared separately, or written by the Deployment controller, which never finishes a rollout without a node.
IGNORED_STATUS_FIELDS = ("conditions", "observedGeneration", "replicas", "readyReplicas")
KINDS = "bkc,rtp,dlq,rply,configmap,serviceaccount,deployment,job"
DIGEST = re.compile(r'"deadletter.dev/assignment": "[0-9a-f]+"')  # of names that differ between two runs


def queue_spec(source: str, **more: Any) -> dict[str, Any]:
    http = {"url": "http://billing.example/orders"}
    whole = {"source": {"name": source, "group": "billing"}, "delivery": {"http": http}, "deletionPolicy": "Delete"}
    return {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}} | whole | more


def create_and_change_everything(kube: KubeNamespace, redis: str, source: str) -> dict[str, Any]:
    """Create the objects, change policy and queue, and return the final state without what differs between two runs."""
    kube.redis(redis)
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    kube.apply("DeadLetterQueue", "orders", queue_spec(source))
    wait_until("courier", lambda: kube.get("deployment", "orders-courier"))
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 6})
    kube.apply("DeadLetterQueue", "orders", queue_spec(source, alerts={"depth": 10}, suspend=True))
    kube.apply("Replay", "again", {"queueRef": {"name": "orders"}, "suspend": True})
    kube.apply("Replay", "now", {"queueRef": {"name": "orders"}})
    wait_until("job", lambda: kube.get("job", "now-replay"))
    wait_until("converged", lambda: has_converged(kube))
    return final_state(kube, source)


def has_converged(kube: KubeNamespace) -> bool:
    text = kube.get("configmap", "orders-courier").get("data", {}).get("assignment.json", "{}")
    status = kube.get("dlq", "orders").get("status", {})
    seen = status.get("observedGeneration") == 2 and status.get("depth") == 0
    users = kube.get("rtp", "standard").get("status", {}).get("queues") == 1
    users = users and kube.get("bkc", "broker").get("status", {}).get("queues") == 1
    replays = [kube.condition("rply", name, "Succeeded").get("reason") for name in ("again", "now")]
    paused = json.loads(kube.get("configmap", "orders-courier").get("data", {}).get("live.json", "{}")).get("paused")
    is_configured = json.loads(text).get("policy", {}).get("max_attempts") == 6 and paused == "Suspended"
    return bool(seen and users and is_configured and replays == ["Suspended", "Freezing"])


def final_state(kube: KubeNamespace, *replaced: str, of: str = "") -> dict[str, str]:
    """Return children and statuses by name, without what differs between two runs; `of` is a prefix of the names."""
    items = json.loads(kube.kubectl("get", KINDS, "-o", "json"))["items"]
    hidden = [*(body["metadata"]["uid"] for body in items), *replaced, kube.namespace]
    ours = [body for body in items if _is_ours(body) and body["metadata"]["name"].startswith(of)]
    return {_masked(_name(body), hidden): _masked(_comparable(body), hidden) for body in ours}


def _is_ours(body: dict[str, Any]) -> bool:
    return body["apiVersion"].startswith("deadletter.dev") or "ownerReferences" in body["metadata"]


def _name(body: dict[str, Any]) -> str:
    return f"{body['kind']}/{body['metadata']['name']}"


def _comparable(body: dict[str, Any]) -> str:
    kept = [body.get("spec"), body.get("data"), body["metadata"].get("finalizers")]
    if body["apiVersion"].startswith("deadletter.dev"):
        status = body.get("status", {})
        for one in status.get("ownedBoxes", ()):
            one["id"] = bool(one.get("id"))  # differs between two runs
        kept += [
            {
                key: value
                for key, value in status.items()
                if key not in IGNORED_STATUS_FIELDS and not key.endswith("Time")
            }
        ]
        kept += [[one["type"], one["status"], one["reason"], one["message"]] for one in status.get("conditions", ())]
    return json.dumps(kept, sort_keys=True)


def _masked(text: str, hidden: list[str]) -> str:
    for word in hidden:
        text = text.replace(word, "...")
    return DIGEST.sub("...", text)


def delete_everything(kube: KubeNamespace, redis: str, source: str) -> None:
    """Delete the queue, and wait until its children and boxes are gone too."""
    kube.kubectl("delete", "rply", "--all", "--timeout=120s")
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    wait_until("collected", lambda: not kube.get("deployment", "orders-courier"))
    with driver.Redis.from_url(redis) as client:
        wait_until("no box is left", lambda: not list(client.scan_iter(f"*{source}*dlq*")))
