"""Messages about pods that ended or do not start; the test plays kubelet and scheduler."""

import json
import uuid
from typing import Any

import pytest

from deadletter.controller.reconcile.pods import container_exits, describe_problem, waiting_reason
from deadletter.plan.queue_status import replica_failure_message
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


def pod(**state: Any) -> dict[str, Any]:
    return {"status": {"containerStatuses": [state]}}


def ended(second: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"finishedAt": f"2026-11-18T00:00:0{second}Z"} | more}


OURS = json.dumps({"reason": "NotAuthorised", "message": "orders: look at its ACLs"})
WAITS = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


@pytest.mark.parametrize(("pods", "message"), [
    ([], ""),
    ([pod(state={"running": {}})], ""),
    ([pod(state={"waiting": {"reason": "ContainerCreating"}})], ""),
    ([pod(state=WAITS)], "A pod is waiting: ImagePullBackOff: Back-off pulling image"),
    ([{"status": {"conditions": [UNSCHEDULED]}}], "A pod is waiting: Unschedulable: 0/3 nodes"),
    ([pod(state=WAITS, lastState=ended(2, exitCode=1, message=OURS))],
     "A pod ended: NotAuthorised: orders: look at its ACLs"),
    ([pod(lastState=ended(2, exitCode=137, reason="OOMKilled"))], "A pod ended: OOMKilled, exit code 137."),
    ([pod(state=ended(1, exitCode=1, message=OURS)), pod(state=ended(2, exitCode=0))], ""),
])  # fmt: skip
def test_the_problem_of_pods_is_described(pods: list[dict[str, Any]], message: str) -> None:
    assert describe_problem(pods) == message


def test_exits_are_sorted_by_time() -> None:
    pods = [pod(lastState=ended(2, message="newer"), state=ended(3))]
    pods += [pod(state=ended(4, message="newest")), pod(state=ended(1, message="old"))]
    assert [one.message for one in container_exits(pods)] == ["old", "newer", "", "newest"]


def test_a_deployment_that_cannot_create_pods_is_described() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    message = replica_failure_message({"status": {"conditions": [failed]}})
    assert message == "The Deployment cannot create pods: exceeded quota"
    assert replica_failure_message({}) == ""
    assert waiting_reason([]) == ""


def test_the_status_of_a_queue_and_of_a_replay_says_why_a_pod_is_waiting(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    kube.redis(redis)
    source = {"name": f"orders-{uuid.uuid4().hex[:8]}", "group": "billing"}
    http = {"http": {"url": "http://billing.example/"}}
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "source": source, "delivery": http})
    kube.wait_for_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
    unschedule(kube, "courier")
    kube.kubectl("annotate", "dlq", "orders", "look=again")
    wait_until("the courier's", lambda: "0/3 nodes" in kube.condition("dlq", "orders", "Ready")["message"])
    kube.apply("Replay", "again", {"queueRef": {"name": "orders"}})
    unschedule(kube, "replay")
    found = kube.wait_for_condition("rply", "again", "Succeeded", "Unknown", "Pending")
    assert found["message"] == "A pod is waiting: Unschedulable: 0/3 nodes"


def unschedule(kube: KubeNamespace, role: str) -> None:
    """Mark a pod as unschedulable, as the scheduler does."""

    def names() -> list[str]:
        chosen = f"app.kubernetes.io/component={role}"
        return kube.kubectl("get", "pods", "-l", chosen, "-o", "name").split()

    name = wait_until(f"a pod of the {role}", names)[0]
    patch = json.dumps({"status": {"conditions": [UNSCHEDULED]}})
    kube.kubectl("patch", name, "--subresource=status", "--type=merge", "-p", patch)
