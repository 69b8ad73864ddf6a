"""Create, observe and delete queues on a real API server with real brokers."""

import json
import uuid
from collections.abc import Callable

import pytest

from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_a_plain_queue_on_redis_becomes_ready_and_its_metrics_go_with_it(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    kube.redis(redis)
    dead = fresh("dead")
    kube.apply("RetryPolicy", "standard", {})
    kube.apply(
        "DeadLetterQueue",
        "orders",
        {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}, "dead": {"name": dead}},
    )
    kube.wait_for_condition("brokerconnection", "broker", "Ready", "True", "Reconciled")
    kube.wait_for_condition("dlq", "orders", "Ready", "True", "Reconciled")
    wait_until("depth", lambda: kube.get("dlq", "orders")["status"].get("depth") == 0)
    status = kube.get("dlq", "orders")["status"]
    assert status["boxes"] == {"dead": dead, "ledger": f"{dead}.ledger"}
    assert status["policy"]["name"] == "standard"
    wait_until("counts", lambda: kube.get("rtp", "standard")["status"].get("queues") == 1)
    assert kube.get("bkc", "broker")["status"]["server"]["kind"] == "Redis"
    series = f'dlq_letters{{namespace="{kube.namespace}",queue="orders"}} 0.0'
    wait_until("gauge", lambda: series in operator.metrics())
    kube.kubectl("delete", "dlq", "orders")
    wait_until("gauge gone", lambda: 'queue="orders"' not in operator.metrics())


@pytest.mark.parametrize(("level", "levels"), [("debug", {"debug", "info"}), ("warning", set())])
def test_the_log_level_is_honoured(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], level: str, levels: set[str]
) -> None:
    operator = start(DLQ_LOG_LEVEL=level).wait_until_ready()
    kube.apply("RetryPolicy", "standard", {})
    kube.wait_for_condition("rtp", "standard", "Ready", "True")
    assert operator.stop() == 0
    lines = [json.loads(line) for line in operator.log.read_text().splitlines()]
    assert {line["level"] for line in lines} - {"warning", "error"} == levels
    passes = [line for line in lines if line["event"] == "reconciling"]
    known = {"kind": "RetryPolicy", "namespace": kube.namespace, "name": "standard", "generation": 1}
    assert [line.items() >= known.items() for line in passes[:1]] == [True] * ("debug" in levels)


def test_a_plain_queue_on_kafka_and_its_transition_times(
    kube: KubeNamespace, operator: OperatorProcess, kafka: str
) -> None:
    kube.kafka(kafka)
    dead = fresh("dead")
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}}
    kube.apply("DeadLetterQueue", "plain", spec)
    first = kube.wait_for_condition("dlq", "plain", "Ready", "True")
    kube.apply("DeadLetterQueue", "plain", spec | {"alerts": {"depth": 5}})
    wait_until("seen", lambda: kube.get("dlq", "plain")["status"]["observedGeneration"] == 2)
    again = kube.condition("dlq", "plain", "Ready")
    assert again["lastTransitionTime"] == first["lastTransitionTime"]
    assert again["observedGeneration"] == 2
    kube.apply("DeadLetterQueue", "taken", {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "adopt": True}})
    found = kube.wait_for_condition("dlq", "taken", "Ready", "False", "BoxConflict")
    assert "is already the dead box of DeadLetterQueue plain" in found["message"]
    kube.kubectl("delete", "dlq", "plain")
    kube.wait_for_condition("dlq", "taken", "Ready", "True", "Adopted")
    assert "Ready" in json.dumps(kube.get("dlq", "taken")["status"])
