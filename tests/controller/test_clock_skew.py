"""An operator whose clock is off by five minutes exports no negative age, raises no false alarm, and does not hang."""

import asyncio
import re
import time
import uuid
from pathlib import Path

import pytest
import redis as driver

from deadletter.brokers.connect import open_broker
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.controller.api_proxy import ApiProxy
from tests.controller.operator_process import KubeNamespace, OperatorProcess, running_operator, wait_until
from tests.shifted_clock import shifted_clock


def gauge(operator: OperatorProcess, name: str, queue: str = "orders") -> float | None:
    found = re.search(rf'^{name}{{[^}}]*queue="{queue}"[^}}]*}} (\S+)$', operator.metrics(), re.MULTILINE)
    return float(found[1]) if found else None


def say(redis: str, ledger: str, circuit: str) -> None:
    """A courier with a clock that is right."""

    async def speak() -> None:
        async with open_broker(redis_at(redis), no_secrets, LOOPBACK) as broker:
            word = WorkerStatus("pod-0", circuit=circuit, at=now_ms())
            await broker.report_status(ledger.removesuffix(".ledger"), ledger, "pod-0", word)

    asyncio.run(speak())


@pytest.mark.parametrize("minutes", [-5, 5])
def test_an_operator_with_a_skewed_clock(
    kube: KubeNamespace, kubeconfig: Path, tmp_path: Path, redis: str, minutes: int
) -> None:
    """Behind a proxy without TLS: to a clock of the past the certificate of the bed's API server is not valid yet."""
    with ApiProxy(kube.server) as proxy:
        config = proxy.kubeconfig(kubeconfig)
        with running_operator(config, kube.namespace, tmp_path / "operator.log", **shifted_clock(minutes)) as operator:
            live(kube, operator.wait_until_ready(), redis, minutes)


def live(kube: KubeNamespace, operator: OperatorProcess, redis: str, minutes: int) -> None:
    kube.redis(redis)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}, "alerts": {"age": "10m", "depth": 5}}
    kube.apply("DeadLetterQueue", "orders", spec)
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        client.xadd(dead, {"value": "letter"})
    wait_until("read", lambda: kube.get("dlq", "orders")["status"].get("depth") == 1)
    age = gauge(operator, "dlq_oldest_letter_age_seconds")
    assert age is not None
    assert age == 0 if minutes < 0 else 300 <= age < 600
    assert kube.condition("dlq", "orders", "Degraded")["reason"] == "AsExpected"
    status = kube.get("dlq", "orders")["status"]
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 120))
    assert written < status["oldestLetterTime"] <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def hears() -> bool:  # its clock is another than ours, and it speaks on
        say(redis, status["boxes"]["ledger"], "Open")
        return kube.condition("dlq", "orders", "Degraded").get("reason") == "CircuitOpen"

    wait_until("the open circuit is believed", hears)
    kube.apply("Replay", "preview", {"queueRef": {"name": "orders"}, "mode": "DryRun", "suspend": True})
    kube.wait_for_condition("rply", "preview", "Suspended", "True")
    kube.apply("DeadLetterQueue", "orders", spec | {"deletionPolicy": "Delete"})
    wait_until("guarded", lambda: kube.get("dlq", "orders")["metadata"].get("finalizers"))
    kube.kubectl("delete", "dlq", "orders", "--timeout=60s")
    with driver.Redis.from_url(redis) as client:
        assert not client.exists(dead)
    assert operator.process is not None
    assert operator.process.poll() is None
