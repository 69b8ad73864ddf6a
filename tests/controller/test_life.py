"""The life of each kind, on a real API server with real brokers."""

import json
import uuid
from collections.abc import Callable

import pytest

from tests.controller.operators import Operator, Place, until


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_a_plain_queue_on_redis_becomes_ready_and_is_forgotten(place: Place, operator: Operator, redis: str) -> None:
    place.redis(redis)
    dead = fresh("dead")
    place.apply("RetryPolicy", "standard", {})
    place.apply(
        "DeadLetterQueue",
        "orders",
        {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}, "dead": {"name": dead}},
    )
    place.until_condition("brokerconnection", "broker", "Ready", "True", "Reconciled")
    place.until_condition("dlq", "orders", "Ready", "True", "Reconciled")
    until("depth", lambda: place.get("dlq", "orders")["status"].get("depth") == 0)
    status = place.get("dlq", "orders")["status"]
    assert status["boxes"] == {"dead": dead, "ledger": f"{dead}.ledger"}
    assert status["policy"]["name"] == "standard"
    until("counts", lambda: place.get("rtp", "standard")["status"].get("queues") == 1)
    assert place.get("bkc", "broker")["status"]["server"]["kind"] == "Redis"
    series = f'dlq_letters{{namespace="{place.namespace}",queue="orders"}} 0.0'
    until("gauge", lambda: series in operator.metrics())
    place.kubectl("delete", "dlq", "orders")
    until("gauge gone", lambda: 'queue="orders"' not in operator.metrics())


@pytest.mark.parametrize(("level", "told"), [("debug", {"debug", "info"}), ("warning", set())])
def test_the_log_says_as_much_as_it_is_asked_for(
    place: Place, start: Callable[..., Operator], level: str, told: set[str]
) -> None:
    operator = start(DLQ_LOG_LEVEL=level).until_ready()
    place.apply("RetryPolicy", "standard", {})
    place.until_condition("rtp", "standard", "Ready", "True")
    assert operator.stop() == 0
    lines = [json.loads(line) for line in operator.log.read_text().splitlines()]
    assert {line["level"] for line in lines} - {"warning", "error"} == told
    passes = [line for line in lines if line["event"] == "pass"]
    known = {"kind": "RetryPolicy", "namespace": place.namespace, "name": "standard", "generation": 1}
    assert [line.items() >= known.items() for line in passes[:1]] == [True] * ("debug" in told)


def test_a_plain_queue_on_kafka_and_its_clocks(place: Place, operator: Operator, kafka: str) -> None:
    place.kafka(kafka)
    dead = fresh("dead")
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}}
    place.apply("DeadLetterQueue", "plain", spec)
    first = place.until_condition("dlq", "plain", "Ready", "True")
    place.apply("DeadLetterQueue", "plain", spec | {"alerts": {"depth": 5}})
    until("seen", lambda: place.get("dlq", "plain")["status"]["observedGeneration"] == 2)
    again = place.condition("dlq", "plain", "Ready")
    assert again["lastTransitionTime"] == first["lastTransitionTime"]
    assert again["observedGeneration"] == 2
    place.apply("DeadLetterQueue", "taken", {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "adopt": True}})
    found = place.until_condition("dlq", "taken", "Ready", "False", "BoxConflict")
    assert "is already the dead box of DeadLetterQueue plain" in found["message"]
    place.kubectl("delete", "dlq", "plain")
    place.until_condition("dlq", "taken", "Ready", "True", "Adopted")
    assert "Ready" in json.dumps(place.get("dlq", "taken")["status"])
