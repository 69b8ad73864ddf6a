"""The operator is killed, doubled and refused; the end is always the same."""

import json
import re
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed.control import ApiServer
from tests.handlers.operators import Operator, Place, rights, running, until
from tests.handlers.proxies import Proxy


def spec(source: str, **more: Any) -> dict[str, Any]:
    http = {"url": "http://billing.example/orders"}
    whole = {"source": {"name": source, "group": "billing"}, "delivery": {"http": http}, "deletionPolicy": "Delete"}
    return {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}} | whole | more


def live_a_life(place: Place, redis: str, source: str) -> dict[str, Any]:
    """Create, change the policy, change the queue; the state at the end, without what differs between two runs."""
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


def end_state(place: Place, source: str) -> dict[str, Any]:
    """Children and statuses by name."""
    kinds = "bkc,rtp,dlq,rply,configmap,serviceaccount,deployment,job"
    out = {}
    for body in json.loads(place.kubectl("get", kinds, "-o", "json"))["items"]:
        name = f"{body['kind']}/{body['metadata']['name']}"
        if body["kind"] in ("ConfigMap", "ServiceAccount") and "ownerReferences" not in body["metadata"]:
            continue
        conditions = [
            (one["type"], one["status"], one["reason"]) for one in body.get("status", {}).get("conditions", ())
        ]
        ours = body["apiVersion"].startswith("deadletter.dev")
        text = json.dumps(
            [body.get("spec"), body.get("data"), body["metadata"].get("finalizers"), conditions if ours else None]
        )
        for uid in uids(place):
            text = text.replace(uid, "UID")
        text = re.sub(
            r'"deadletter.dev/assignment": "[0-9a-f]+"', "HASH", text
        )  # of names that differ between two runs
        out[name] = text.replace(source, "SOURCE").replace(place.namespace, "NAMESPACE")
    return out


def uids(place: Place) -> list[str]:
    items = json.loads(place.kubectl("get", "dlq,rply,job", "-o", "json"))["items"]
    return [body["metadata"]["uid"] for body in items]


def die(place: Place) -> None:
    """The queue goes, and its boxes and children with it."""
    place.kubectl("delete", "rply", "--all", "--timeout=120s")
    place.kubectl("delete", "dlq", "orders", "--timeout=120s")
    until("collected", lambda: not place.get("deployment", "orders-courier"))


def lives(crds: ApiServer, redis: str, folder: Path, kill_at: int) -> dict[str, Any]:
    """One life in a namespace of its own, the operator killed after its `kill_at`-th write (0: never)."""
    namespace = f"sieve-{uuid.uuid4().hex[:8]}"
    crds.kubectl("create", "namespace", namespace)
    place, source = Place(crds, namespace), f"orders-{uuid.uuid4().hex[:8]}"
    killed = threading.Event()

    def at(number: int) -> None:
        if number == kill_at and operator.process is not None:
            operator.process.send_signal(signal.SIGKILL)
            killed.set()

    with Proxy(crds, at) as proxy:
        config = proxy.kubeconfig(rights(crds, namespace, folder))
        with running(config, namespace, folder / f"{kill_at}.log") as operator:
            supervisor = threading.Thread(target=again, args=(operator, killed), daemon=True)
            supervisor.start()
            state = live_a_life(place, redis, source)
            die(place)
            operator.ending = True
            killed.set()
            supervisor.join(60)
    crds.kubectl("delete", "namespace", namespace, "--wait=false")
    return state


def again(operator: Operator, killed: threading.Event) -> None:
    """A killed operator is started again, as its Deployment would."""
    killed.wait()
    dead = operator.process
    if dead is not None and not operator.ending:
        dead.wait(60)
        operator.start()


@pytest.mark.timeout(600)
def test_a_killed_operator_ends_where_an_undisturbed_one_does(crds: ApiServer, redis: str, tmp_path: Path) -> None:
    undisturbed = lives(crds, redis, tmp_path, 0)
    for kill_at in (3, 8, 15):
        assert lives(crds, redis, tmp_path, kill_at) == undisturbed


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_killed_after_every_write(crds: ApiServer, redis: str, tmp_path: Path) -> None:
    undisturbed = lives(crds, redis, tmp_path, 0)
    for kill_at in range(1, 40):
        assert lives(crds, redis, tmp_path, kill_at) == undisturbed


def test_two_operators_do_no_harm(place: Place, start: Callable[..., Operator], redis: str) -> None:
    one, other = start().until_ready(), start().until_ready()
    live_a_life(place, redis, f"orders-{uuid.uuid4().hex[:8]}")
    for operator in (one, other):
        assert operator.process is not None
        assert operator.process.poll() is None
    die(place)


def test_an_api_server_that_refuses_is_waited_for(place: Place, kubeconfig: Path, redis: str, tmp_path: Path) -> None:
    with Proxy(place.server) as proxy:
        config = proxy.kubeconfig(kubeconfig)
        with running(config, place.namespace, tmp_path / "operator.log") as operator:
            operator.until_ready()
            place.redis(redis)
            place.until_condition("bkc", "broker", "Ready", "True")
            for status in (500, 429, 403):
                proxy.refuse = status
                name = f"during-{status}"
                dead = {"name": f"dead-{uuid.uuid4().hex[:8]}"}
                place.apply("DeadLetterQueue", name, {"brokerRef": {"name": "broker"}, "dead": dead})
                proxy.refuse = 0
                place.until_condition("dlq", name, "Ready", "True")
            assert operator.process is not None
            assert operator.process.poll() is None
