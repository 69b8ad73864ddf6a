"""Outages of a broker, deletion policies, and extreme letters."""

import json
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as driver

from tests.bed import places
from tests.controller.kubectl_watch import watch_queues
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until
from tests.controller.tcp_proxy import TcpProxy


@pytest.fixture
def proxy(redis: str) -> Iterator[TcpProxy]:
    parts = urlsplit(redis)
    proxy = TcpProxy(parts.hostname or "", parts.port or 0).open()
    yield proxy
    proxy.close()


def queue(dead: str, **more: object) -> dict[str, object]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": dead}} | more


def test_kubectl_watch_shows_an_outage(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, proxy: TcpProxy, tmp_path: Path
) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    with watch_queues(kube.server, kube.namespace, tmp_path / "watch", "-o", "wide") as transcript:
        kube.redis(f"redis://127.0.0.1:{proxy.port}/0")
        kube.apply("DeadLetterQueue", "orders", queue(dead, alerts={"depth": 1}))
        transcript.wait_for(("True",))
        with driver.Redis.from_url(redis) as client:
            first, second = (client.xadd(dead, {"value": b"x"}) for _ in range(2))
            transcript.wait_for(("True", "DepthHigh"))
            proxy.close()
            transcript.wait_for(("False", "BrokerUnreachable"))
            proxy.open()
            kube.wait_for_condition("dlq", "orders", "Ready", "True")
            client.xdel(dead, first, second)
        transcript.wait_for(
            ("True",),
            ("True", "DepthHigh"),
            ("False", "BrokerUnreachable"),
            ("True", "DepthHigh"),
            ("True",),
        )


def test_an_outage_is_reported_and_ends(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, proxy: TcpProxy
) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.redis(f"redis://127.0.0.1:{proxy.port}/0")
    kube.apply("DeadLetterQueue", "orders", queue(dead, alerts={"depth": 1}))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        for _ in range(3):
            client.xadd(dead, {"value": b"canary-payload"})
    wait_until("depth", lambda: kube.get("dlq", "orders")["status"].get("depth") == 3)
    kube.wait_for_condition("dlq", "orders", "Degraded", "True", "DepthHigh")
    series = f'dlq_letters{{namespace="{kube.namespace}",queue="orders"}} 3.0'
    wait_until("gauge", lambda: series in operator.metrics())
    proxy.close()
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "BrokerUnreachable")
    kube.wait_for_condition("bkc", "broker", "Ready", "False", "BrokerUnreachable")
    wait_until("the metrics are removed", lambda: "dlq_letters{" not in operator.metrics())
    assert re.search(r'^dlq_sweeps_failed_total{.*queue="orders"} [1-9]', operator.metrics(), re.MULTILINE)
    proxy.open()
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.wait_for_condition("bkc", "broker", "Ready", "True")
    wait_until("gauge again", lambda: series in operator.metrics())
    written = operator.log.read_text() + operator.metrics() + kube.kubectl("get", "dlq,bkc,events", "-o", "yaml")
    assert "canary-payload" not in written
    assert operator.stop() == 0


def test_a_broker_that_never_answers_delays_no_other(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], redis: str
) -> None:
    start(DLQ_CONCURRENCY="4").wait_until_ready()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        kube.redis(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "silent")
        many = [
            {"apiVersion": "deadletter.dev/v1alpha1", "kind": "DeadLetterQueue", "metadata": {"name": f"q-{n}"}}
            | {"spec": queue(f"dead-{n}", brokerRef={"name": "silent"})}
            for n in range(40)
        ]
        kube.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in many))
        wait_until("all say so", lambda: kube.kubectl("get", "dlq").count(" BrokerUnreachable") == len(many))
        kube.redis(redis)
        kube.apply("DeadLetterQueue", "well", queue(f"dead-{uuid.uuid4().hex[:8]}"))
        wait_until("no queue of another broker waits", lambda: kube.condition("dlq", "well", "Ready"), timeout_s=15)


def test_boxes_are_kept_or_deleted_by_policy(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, proxy: TcpProxy
) -> None:
    kube.redis(f"redis://127.0.0.1:{proxy.port}/0")
    kept, dropped, held, free = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("kept", "dropped", "held", "free"))
    with driver.Redis.from_url(redis) as client:
        kube.apply("DeadLetterQueue", "kept", queue(kept))
        for name, box in (("dropped", dropped), ("held", held), ("free", free)):
            kube.apply("DeadLetterQueue", name, queue(box, deletionPolicy="Delete"))
        for name in ("kept", "dropped", "held", "free"):
            kube.wait_for_condition("dlq", name, "Ready", "True")
        for name in (kept, dropped, held, free):
            client.xadd(name, {"value": b"x"})
        assert kube.get("dlq", "kept")["metadata"].get("finalizers") is None
        assert kube.get("dlq", "dropped")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
        kube.kubectl("delete", "dlq", "kept", "dropped", "--timeout=120s")
        assert client.exists(kept) == 1
        assert client.exists(dropped) == 0
        proxy.close()
        kube.kubectl("delete", "dlq", "held", "free", "--wait=false")
        blocked = kube.wait_for_condition("dlq", "held", "Ready", "False", "DeletionBlocked")
        assert "deadletter.dev/force-delete=true" in blocked["message"]
        kube.kubectl("annotate", "dlq", "free", "deadletter.dev/force-delete=true")
        wait_until("forced", lambda: not kube.get("dlq", "free"))
        assert kube.get("dlq", "held")
        proxy.open()
        wait_until("released", lambda: not kube.get("dlq", "held"))
        assert client.exists(held) == 0
        assert client.exists(free) == 1


def test_the_box_of_an_older_queue_is_not_deleted_with_a_younger_one(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    """A connection was changed, so that two queues have one box: it goes with its owner, not with the other."""
    dead, elsewhere = f"dead-{uuid.uuid4().hex[:8]}", f"{redis.rpartition('/')[0]}/7"
    kube.redis(redis)
    kube.redis(elsewhere, "other")
    kube.apply("DeadLetterQueue", "older", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})
    kube.wait_for_condition("dlq", "older", "Ready", "True")
    spec = {"brokerRef": {"name": "other"}, "dead": {"name": dead}, "deletionPolicy": "Delete"}
    wait_until("another second", lambda: time.time() > created(kube, "older") + 1)
    kube.apply("DeadLetterQueue", "younger", spec)
    kube.wait_for_condition("dlq", "younger", "Ready", "True")
    kube.redis(redis, "other")
    kube.wait_for_condition("dlq", "younger", "Ready", "False", "BoxConflict")
    kube.kubectl("delete", "dlq", "younger", "--timeout=60s")
    with driver.Redis.from_url(redis) as client:
        assert client.exists(dead)


def test_a_changed_deletion_policy_takes_effect(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    """The finalizer is of the time before, and a missing policy keeps the operator from taking it off."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.redis(redis)
    kube.apply("RetryPolicy", "standard", {})
    spec = queue(dead, retryPolicyRef={"name": "standard"}, deletionPolicy="Delete")
    kube.apply("DeadLetterQueue", "orders", spec)
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.kubectl("delete", "rtp", "standard")
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")
    with driver.Redis.from_url(redis) as client:
        client.xadd(dead, {"value": b"x"})
        kube.apply("DeadLetterQueue", "orders", spec | {"deletionPolicy": "Retain"})
        assert kube.get("dlq", "orders")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
        kube.kubectl("delete", "dlq", "orders", "--timeout=60s")
        assert client.xlen(dead) == 1


def test_a_letter_with_the_greatest_possible_id_is_counted(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    """Clients may choose any stream id; such a letter must not end the operator, nor the sweep of other queues."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.redis(redis)
    kube.apply("DeadLetterQueue", "orders", queue(dead))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        client.xadd(dead, {"value": b"x"}, id=f"{2**64 - 1}-1")
    wait_until("depth", lambda: kube.get("dlq", "orders")["status"].get("depth") == 1)
    assert kube.get("dlq", "orders")["status"]["oldestLetterTime"] == "9999-12-31T23:59:59Z"
    assert operator.process is not None
    assert operator.process.poll() is None


def created(kube: KubeNamespace, name: str) -> float:
    stamp = kube.get("dlq", name)["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()


def test_finalizers_are_released_before_an_uninstall(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    kube.redis(redis)
    kube.apply("DeadLetterQueue", "orders", queue(f"dead-{uuid.uuid4().hex[:8]}", deletionPolicy="Delete"))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert kube.get("dlq", "orders")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
    environment = {"KUBECONFIG": str(operator.kubeconfig), "DLQ_NAMESPACES": kube.namespace}
    environment |= {"PYTHONPATH": str(places.REPOSITORY / "operator")}
    command = [sys.executable, "-m", "deadletter", "release-finalizers"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "removed the finalizer from 1 queues\n"), done.stderr
    # The operator still runs and does not put it back.
    kube.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"spec":{"alerts":{"depth":5}}}')
    wait_until("seen", lambda: kube.get("dlq", "orders")["status"]["observedGeneration"] == 2)
    assert kube.get("dlq", "orders")["metadata"].get("finalizers") is None
    operator.stop()
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
