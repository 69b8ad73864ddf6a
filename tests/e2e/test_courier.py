"""A courier in the cluster while everything around it changes: nothing is lost."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.demo import story, traffic
from tests.demo.stage import Stage
from tests.e2e import previous

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

A_SECOND = 100


@contextmanager
def flowing(told: story.Story) -> Iterator[list[int]]:
    """Orders at a hundred a second until the end; the list holds how many were sent."""
    sent, stop = [0], threading.Event()

    def flow() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            told.send(traffic.orders(A_SECOND, sent[0]))
            sent[0] += A_SECOND
            stop.wait(max(0.0, 1 - (time.monotonic() - begun)))

    thread = threading.Thread(target=flow, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(120)


def taken(stage: Stage) -> int:
    """How many different orders the shop took, as it says itself."""
    pod = stage.kubectl("get", "pods", "-l", "app=shop", "-o", "jsonpath={.items[0].metadata.name}")
    return int(stage.kubectl("get", "--raw", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}:8080/proxy/"))


def test_no_order_is_lost_while_couriers_scale_roll_and_pause_and_the_operator_is_upgraded(
    cluster: Cluster, bed: Bed
) -> None:
    previous.install(cluster)
    stage = Stage(cluster, "flow")
    told = story.Story(stage, "kafka", bed.kafka(), source="flow")
    try:
        told.set_up()
        with flowing(told) as sent:
            stage.kubectl("scale", "dlq/orders", "--replicas=3")
            stage.until("three couriers", lambda: stage.get("dlq/orders")["status"].get("readyReplicas") == 3)
            story.install(cluster, "--set", "operator.logLevel=debug")
            cluster.helm("rollback", "dlq", "--namespace", story.SYSTEM, "--wait", "--timeout", "240s")
            rolled = stage.get("dlq/orders")["status"]["policy"]["hash"]
            patch(stage, "rtp/patient", {"maxAttempts": 6})
            stage.until("the new policy", lambda: stage.get("dlq/orders")["status"]["policy"]["hash"] != rolled)
            patch(stage, "dlq/orders", {"suspend": True})
            stage.until("the pause", lambda: stage.condition("dlq/orders", "Ready").get("reason") == "Suspended")
            patch(stage, "dlq/orders", {"suspend": False})
            stage.until("the end of it", lambda: stage.condition("dlq/orders", "Ready").get("reason") == "Reconciled")
        stage.until(f"all {sent[0]} orders", lambda: taken(stage) == sent[0], 300)
        stage.until("no letter", lambda: story.depth(stage) == 0)
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def patch(stage: Stage, what: str, spec: dict[str, object]) -> None:
    stage.kubectl("patch", what, "--type=merge", "-p", json.dumps({"spec": spec}))
