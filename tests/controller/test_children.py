"""The children of a delivered queue: made, hashed, put right, scaled, paused without a restart."""

import json
import uuid
from typing import Any

import redis as driver

from tests.controller.operators import Operator, Place, until


def delivered(place: Place, redis: str) -> dict[str, Any]:
    place.redis(redis)
    place.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    source = {"name": f"orders-{uuid.uuid4().hex[:8]}", "group": "billing"}
    http = {"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}}
    return {"brokerRef": {"name": "broker"}, "source": source, "delivery": {"http": http}}


def assignment(place: Place) -> dict[str, Any]:
    return json.loads(place.get("configmap", "orders-courier")["data"]["assignment.json"])


def live(place: Place) -> dict[str, Any]:
    return json.loads(place.get("configmap", "orders-courier")["data"]["live.json"])


def grace(place: Place) -> int:
    return int(place.get("deployment", "orders-courier")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])


def scale(place: Place) -> dict[str, Any]:
    """What an autoscaler reads."""
    path = f"/apis/deadletter.dev/v1alpha1/namespaces/{place.namespace}/deadletterqueues/orders/scale"
    return json.loads(place.kubectl("get", "--raw", path))


def digest(place: Place) -> str:
    template = place.get("deployment", "orders-courier")["spec"]["template"]
    return str(template["metadata"]["annotations"]["deadletter.dev/assignment"])


def test_a_courier_is_deployed_and_kept(place: Place, operator: Operator, redis: str) -> None:
    spec = delivered(place, redis)
    place.kubectl("label", "namespace", place.namespace, "pod-security.kubernetes.io/enforce=restricted")
    place.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    place.apply("DeadLetterQueue", "orders", spec | {"retryPolicyRef": {"name": "standard"}})
    place.until_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
    until(
        "pod", lambda: place.kubectl("get", "pods", "-o", "name").strip()
    )  # the namespace takes restricted pods alone
    told = assignment(place)
    assert told["url"] == f"http://billing.{place.namespace}.svc:8080/orders"
    assert told["policy"]["max_attempts"] == 4
    before = digest(place)
    status = place.get("dlq", "orders")["status"]
    assert status["selector"].startswith("deadletter.dev/queue=orders")
    # A changed policy rolls the pods; a pause does not.
    place.apply("RetryPolicy", "standard", {"maxAttempts": 7})
    until("rolled", lambda: digest(place) != before)
    assert assignment(place)["policy"]["max_attempts"] == 7
    rolled = digest(place)
    suspended = spec | {"retryPolicyRef": {"name": "standard"}, "suspend": True}
    place.apply("DeadLetterQueue", "orders", suspended)
    until("paused", lambda: live(place)["paused"] == "Suspended")
    assert digest(place) == rolled
    # What somebody else changed is put right; what they deleted comes back.
    place.kubectl(
        "patch",
        "deployment",
        "orders-courier",
        "--type=merge",
        "-p",
        '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}',
    )
    until("put right", lambda: grace(place) == 45)
    place.kubectl("delete", "configmap", "orders-courier")
    until("back", lambda: place.get("configmap", "orders-courier"))
    place.kubectl("scale", "dlq", "orders", "--replicas=3")
    until("scaled", lambda: place.get("deployment", "orders-courier")["spec"]["replicas"] == 3)
    counted = lambda: place.get("deployment", "orders-courier")["status"].get("replicas", 0)  # noqa: E731
    until("told to an autoscaler", lambda: scale(place)["status"].get("replicas") == counted() >= 3)
    asked = dict(pair.split("=") for pair in scale(place)["status"]["selector"].split(","))
    pods = place.get("deployment", "orders-courier")["spec"]["template"]["metadata"]["labels"]
    assert asked.items() <= pods.items()
    place.kubectl("delete", "dlq", "orders")
    until("collected", lambda: not place.get("deployment", "orders-courier"))


def test_the_last_good_policy_is_kept_and_a_pause_still_works(place: Place, operator: Operator, redis: str) -> None:
    spec = delivered(place, redis) | {"retryPolicyRef": {"name": "standard"}}
    place.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    place.apply("DeadLetterQueue", "orders", spec)
    place.until_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
    before = digest(place)
    place.kubectl("delete", "rtp", "standard")
    place.until_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
    place.apply("DeadLetterQueue", "orders", spec | {"suspend": True})
    until("paused", lambda: live(place)["paused"] == "Suspended")
    assert assignment(place)["policy"]["max_attempts"] == 4
    assert digest(place) == before
    assert place.get("dlq", "orders")["status"]["policy"]["name"] == "standard"


def test_a_full_box_shuts_the_gate_and_an_emptied_one_opens_it(place: Place, operator: Operator, redis: str) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    spec = delivered(place, redis) | {"dead": {"name": dead}, "capacity": {"maxLetters": 2}}
    place.apply("DeadLetterQueue", "orders", spec)
    until("courier", lambda: place.get("deployment", "orders-courier"))
    before = digest(place)
    with driver.Redis.from_url(redis) as client:
        first, _ = (client.xadd(dead, {"value": b"x"}) for _ in range(2))
        until("shut", lambda: live(place)["paused"] == "CapacityReached")
        place.until_condition("dlq", "orders", "Degraded", "True", "CapacityReached")
        client.xdel(dead, first)
        until("open", lambda: not live(place).get("paused"))
    assert digest(place) == before, "no pod is rolled"


def test_an_automatic_queue_gets_a_redrive(place: Place, operator: Operator, redis: str) -> None:
    place.redis(redis)
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}}
    place.apply("DeadLetterQueue", "orders", spec | {"redrive": {"strategy": "Automatic"}})
    until("redrive", lambda: place.get("deployment", "orders-redrive"))
    assert place.get("deployment", "orders-redrive")["spec"]["template"]["spec"]["containers"][0]["args"] == ["redrive"]
    place.apply("DeadLetterQueue", "orders", spec)
    until("no redrive", lambda: not place.get("deployment", "orders-redrive"))
