"""The children of a delivered queue: created, corrected after drift, scaled, and paused without a restart."""

import json
import uuid
from typing import Any

import redis as driver

from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


def delivered(kube: KubeNamespace, redis: str) -> dict[str, Any]:
    kube.redis(redis)
    kube.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    source = {"name": f"orders-{uuid.uuid4().hex[:8]}", "group": "billing"}
    http = {"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}}
    return {"brokerRef": {"name": "broker"}, "source": source, "delivery": {"http": http}}


def assignment(kube: KubeNamespace) -> dict[str, Any]:
    return json.loads(kube.get("configmap", "orders-courier")["data"]["assignment.json"])


def live(kube: KubeNamespace) -> dict[str, Any]:
    return json.loads(kube.get("configmap", "orders-courier")["data"]["live.json"])


def grace(kube: KubeNamespace) -> int:
    return int(kube.get("deployment", "orders-courier")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])


def scale(kube: KubeNamespace) -> dict[str, Any]:
    """What an autoscaler reads."""
    path = f"/apis/deadletter.dev/v1alpha1/namespaces/{kube.namespace}/deadletterqueues/orders/scale"
    return json.loads(kube.kubectl("get", "--raw", path))


def digest(kube: KubeNamespace) -> str:
    template = kube.get("deployment", "orders-courier")["spec"]["template"]
    return str(template["metadata"]["annotations"]["deadletter.dev/assignment"])


def test_a_courier_is_deployed_and_kept(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    spec = delivered(kube, redis)
    kube.kubectl("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    kube.apply("DeadLetterQueue", "orders", spec | {"retryPolicyRef": {"name": "standard"}})
    kube.wait_for_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
    wait_until(
        "pod", lambda: kube.kubectl("get", "pods", "-o", "name").strip()
    )  # the namespace takes restricted pods alone
    stored = assignment(kube)
    assert stored["url"] == f"http://billing.{kube.namespace}.svc:8080/orders"
    assert stored["policy"]["max_attempts"] == 4
    before = digest(kube)
    status = kube.get("dlq", "orders")["status"]
    assert status["selector"].startswith("deadletter.dev/queue=orders")
    # A changed policy rolls the pods; a pause does not.
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 7})
    wait_until("rolled", lambda: digest(kube) != before)
    assert assignment(kube)["policy"]["max_attempts"] == 7
    rolled = digest(kube)
    suspended = spec | {"retryPolicyRef": {"name": "standard"}, "suspend": True}
    kube.apply("DeadLetterQueue", "orders", suspended)
    wait_until("paused", lambda: live(kube)["paused"] == "Suspended")
    assert digest(kube) == rolled
    # A foreign change is reverted, and a deleted child is created again.
    kube.kubectl(
        "patch",
        "deployment",
        "orders-courier",
        "--type=merge",
        "-p",
        '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}',
    )
    wait_until("put right", lambda: grace(kube) == 45)
    kube.kubectl("delete", "configmap", "orders-courier")
    wait_until("back", lambda: kube.get("configmap", "orders-courier"))
    kube.kubectl("scale", "dlq", "orders", "--replicas=3")
    wait_until("scaled", lambda: kube.get("deployment", "orders-courier")["spec"]["replicas"] == 3)
    counted = lambda: kube.get("deployment", "orders-courier")["status"].get("replicas", 0)  # noqa: E731
    wait_until("visible to an autoscaler", lambda: scale(kube)["status"].get("replicas") == counted() >= 3)
    asked = dict(pair.split("=") for pair in scale(kube)["status"]["selector"].split(","))
    pods = kube.get("deployment", "orders-courier")["spec"]["template"]["metadata"]["labels"]
    assert asked.items() <= pods.items()
    kube.kubectl("delete", "dlq", "orders")
    wait_until("collected", lambda: not kube.get("deployment", "orders-courier"))


def test_the_last_good_policy_is_kept_and_a_pause_still_works(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    spec = delivered(kube, redis) | {"retryPolicyRef": {"name": "standard"}}
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 4})
    kube.apply("DeadLetterQueue", "orders", spec)
    kube.wait_for_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
    before = digest(kube)
    kube.kubectl("delete", "rtp", "standard")
    kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
    kube.apply("DeadLetterQueue", "orders", spec | {"suspend": True})
    wait_until("paused", lambda: live(kube)["paused"] == "Suspended")
    assert assignment(kube)["policy"]["max_attempts"] == 4
    assert digest(kube) == before
    assert kube.get("dlq", "orders")["status"]["policy"]["name"] == "standard"


def test_a_full_box_pauses_the_courier_until_it_is_emptied(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    spec = delivered(kube, redis) | {"dead": {"name": dead}, "capacity": {"maxLetters": 2}}
    kube.apply("DeadLetterQueue", "orders", spec)
    wait_until("courier", lambda: kube.get("deployment", "orders-courier"))
    before = digest(kube)
    with driver.Redis.from_url(redis) as client:
        first, _ = (client.xadd(dead, {"value": b"x"}) for _ in range(2))
        wait_until("shut", lambda: live(kube)["paused"] == "CapacityReached")
        kube.wait_for_condition("dlq", "orders", "Degraded", "True", "CapacityReached")
        client.xdel(dead, first)
        wait_until("open", lambda: not live(kube).get("paused"))
    assert digest(kube) == before, "no pod is rolled"


def test_an_automatic_queue_gets_a_redrive(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    kube.redis(redis)
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}}
    kube.apply("DeadLetterQueue", "orders", spec | {"redrive": {"strategy": "Automatic"}})
    wait_until("redrive", lambda: kube.get("deployment", "orders-redrive"))
    assert kube.get("deployment", "orders-redrive")["spec"]["template"]["spec"]["containers"][0]["args"] == ["redrive"]
    kube.apply("DeadLetterQueue", "orders", spec)
    wait_until("no redrive", lambda: not kube.get("deployment", "orders-redrive"))
