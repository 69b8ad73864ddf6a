"""A courier in the cluster during upgrades, rollbacks and pauses: no order is lost."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.types import StoredMessage
from tests import previous
from tests.bed import image
from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.bed.processes import BedError
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets
from tests.brokers.helpers import read_all
from tests.demo import story, traffic
from tests.demo.stage import Stage
from tests.helpers.headers import read_own_envelope

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

ORDERS_PER_SECOND = 100
COURIERS = 2


def orders(first: int) -> list[dict[str, Any]]:
    """Return the orders of one second: one is always rejected, four are accepted at the third attempt."""
    made = traffic.orders(ORDERS_PER_SECOND, first)
    made[50]["currency"] = "DOGE"
    for number in range(3, ORDERS_PER_SECOND, 25):
        made[number]["flaky"] = True
    return made


@contextmanager
def sending(demo: story.Story) -> Iterator[list[int]]:
    """Send a hundred orders per second while the block runs; the list holds how many were sent."""
    sent, stop = [0], threading.Event()

    def send() -> None:
        begun = time.monotonic()
        while not stop.is_set():
            demo.send(orders(sent[0]))
            sent[0] += ORDERS_PER_SECOND
            stop.wait(max(0.0, begun + sent[0] / ORDERS_PER_SECOND - time.monotonic()))  # catch up after a delay

    with ThreadPoolExecutor(1) as executor:
        work = executor.submit(send)
        try:
            yield sent
        finally:
            stop.set()
        work.result(120)  # orders that could not be sent fail the test


def count_accepted(stage: Stage) -> int:
    """Ask the shop how many different orders it accepted."""
    pod = stage.kubectl("get", "pods", "-l", "app=shop", "-o", "jsonpath={.items[0].metadata.name}")
    return int(stage.kubectl("get", "--raw", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}:8080/proxy/"))


def letters(stage: Stage, address: str) -> list[StoredMessage]:
    """Return all letters in the dead box."""

    async def read() -> list[StoredMessage]:
        async with open_broker(kafka_at(address), no_secrets, LOOPBACK) as broker:
            return await read_all(broker, stage.get("dlq/orders")["status"]["boxes"]["dead"])

    return asyncio.run(read())


def id_of(letter: StoredMessage) -> str:
    return str(json.loads(letter.message.value or b"")["id"])


def check_orders(stage: Stage, address: str, sent: int) -> None:
    """Assert that every good order was accepted and every bad one is in the dead box once; describe what is wrong."""
    bad = Counter(f"order-{number}" for number in range(50, sent, ORDERS_PER_SECOND))
    good = sent - bad.total()
    try:
        stage.until(f"{good} orders", lambda: count_accepted(stage) == good, 300)
        stage.until(f"{bad.total()} letters", lambda: story.depth(stage) == bad.total())
    except BedError as error:
        found = letters(stage, address)
        envelopes = [(id_of(one), read_own_envelope(one.message)) for one in found]
        unexpected = Counter(
            (known.reason, known.failure.type, known.attempts) for id_, known in envelopes if known and id_ not in bad
        )
        missing = sorted((bad - Counter(map(id_of, found))).elements())[:20]
        pods = stage.kubectl("get", "pods", "-o", "wide")
        pytest.fail(
            f"{error} accepted: {count_accepted(stage)} of {good}, depth {story.depth(stage)}, {len(found)} letters;"
            f" bad orders without a letter: {missing}; good orders in the dead box: {unexpected}\n{pods}"
        )
    assert Counter(map(id_of, letters(stage, address))) == bad
    stage.print(f"    {sent} orders, {bad.total()} letters")


def wait_for_couriers(stage: Stage, version: str) -> None:
    """Wait until all couriers are of this version and ready, and no other is left."""

    def are_ready() -> bool:
        pods = json.loads(stage.kubectl("get", "pods", "-l", "deadletter.dev/queue=orders", "-o", "json"))["items"]
        images = [pod["spec"]["containers"][0]["image"] for pod in pods]
        ready = stage.get("dlq/orders")["status"].get("readyReplicas") == COURIERS
        return ready and len(images) == COURIERS and all(one.endswith(f":{version}") for one in images)

    stage.until(f"{COURIERS} couriers of {version}", are_ready)


def test_no_order_is_lost_while_the_release_is_upgraded_rolled_back_and_upgraded_again(
    cluster: Cluster, bed: Bed
) -> None:
    story.install_previous(cluster)
    stage = Stage(cluster, "flow")
    demo = story.Story(stage, "kafka", bed.kafka(), source="flow")
    try:
        demo.set_up()
        # Park every retry; a slow machine must neither bury an order nor open the circuit.
        policy = {"maxAttempts": 50, "timeout": "30s", "circuitBreaker": {"enabled": False}}
        patch(stage, "rtp/patient", policy)
        patch(stage, "dlq/orders", {"delivery": {"inlineLimit": "0s", "replicas": COURIERS}})
        with sending(demo) as sent:
            wait_for_couriers(stage, previous.VERSION)
            stage.until("letters", lambda: bool(story.depth(stage)))
            story.install(cluster)
            wait_for_couriers(stage, image.version())
            cluster.helm("rollback", "dlq", "--namespace", story.SYSTEM, "--wait", "--timeout", "240s")
            wait_for_couriers(stage, previous.VERSION)
            story.install(cluster)
            wait_for_couriers(stage, image.version())
            roll_and_pause(stage)
        check_orders(stage, bed.kafka(), sent[0])
        assert stage.condition("dlq/orders", "Ready")["status"] == "True"
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def roll_and_pause(stage: Stage) -> None:
    """Change the policy, so that couriers roll, then suspend and resume the queue."""
    rolled = stage.get("dlq/orders")["status"]["policy"]["hash"]
    patch(stage, "rtp/patient", {"maxAttempts": 60})
    stage.until("the new policy", lambda: stage.get("dlq/orders")["status"]["policy"]["hash"] != rolled)
    patch(stage, "dlq/orders", {"suspend": True})
    stage.until("the pause", lambda: stage.condition("dlq/orders", "Ready").get("reason") == "Suspended")
    patch(stage, "dlq/orders", {"suspend": False})
    stage.until("the end of the pause", lambda: stage.condition("dlq/orders", "Ready").get("reason") == "Reconciled")


def patch(stage: Stage, what: str, spec: dict[str, object]) -> None:
    stage.kubectl("patch", what, "--type=merge", "-p", json.dumps({"spec": spec}))
