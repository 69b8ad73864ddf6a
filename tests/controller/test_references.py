"""Every reason of ReferencesResolved, and how each goes away."""

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

from tests.controller.operator_process import KubeNamespace, OperatorProcess


def plain(**more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}} | more


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": 'error.category == "Validation"', "queueRef": {"name": name}} for name in names]


def test_missing_references_are_reported_until_they_exist(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    kube.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}, routes=routes("other")))
    found = kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "BrokerConnectionNotFound")
    assert found["message"] == "BrokerConnection broker does not exist; create it first."
    assert kube.condition("dlq", "orders", "Ready")["status"] == "False"
    assert kube.condition("dlq", "orders", "Reconciling")["status"] == "True"
    kube.redis(redis)
    found = kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
    assert found["message"] == "RetryPolicy slow does not exist; create it first."
    kube.apply("RetryPolicy", "slow", {"maxAttempts": 3})
    found = kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "QueueNotFound")
    assert found["message"] == "DeadLetterQueue other does not exist; create it first."
    kube.apply("DeadLetterQueue", "other", plain())
    kube.wait_for_condition("dlq", "orders", "Ready", "True", "Reconciled")
    kube.kubectl("delete", "rtp", "slow")
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")


def test_permanent_problems_stall_the_queue(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    kube.redis(redis)
    kube.redis(redis, "elsewhere")
    kube.apply("DeadLetterQueue", "c", plain())
    kube.apply("DeadLetterQueue", "b", plain(routes=routes("c")))
    kube.apply("DeadLetterQueue", "a", plain(routes=routes("b")))
    found = kube.wait_for_condition("dlq", "a", "Stalled", "True", "ChainedReference")
    assert "cannot have its own dead-letter queue" in found["message"]
    kube.apply("DeadLetterQueue", "c", kube.get("dlq", "c")["spec"] | {"routes": routes("b")})
    found = kube.wait_for_condition("dlq", "c", "Stalled", "True", "CyclicReference")
    assert "a cycle" in found["message"]
    kube.apply("DeadLetterQueue", "far", plain(brokerRef={"name": "elsewhere"}))
    kube.apply("DeadLetterQueue", "near", plain(routes=routes("far")))
    kube.wait_for_condition("dlq", "near", "Stalled", "True", "BrokerMismatch")
    kube.apply("DeadLetterQueue", "cel", plain(redrive={"strategy": "Selective", "where": "attempts +"}))
    found = kube.wait_for_condition("dlq", "cel", "Stalled", "True", "InvalidSpec")
    assert found["message"].startswith("spec.redrive.where: ")
    kube.apply("RetryPolicy", "bad", {"rules": [{"name": "x", "match": "1 + 1", "action": "Bury"}]})
    kube.wait_for_condition("rtp", "bad", "Ready", "False", "InvalidSpec")


def test_missing_secrets_keys_and_services_are_reported(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    kube.apply("BrokerConnection", "broker", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    kube.wait_for_condition("bkc", "broker", "Ready", "False", "SecretNotFound")
    kube.apply("DeadLetterQueue", "orders", plain())
    kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "SecretNotFound")
    kube.kubectl("create", "secret", "generic", "login", "--from-literal=username=orders")
    found = kube.wait_for_condition("bkc", "broker", "Ready", "False", "SecretKeyMissing")
    assert found["message"] == "Secret login has no key password; add it."
    kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "SecretKeyMissing")
    password = {"data": {"password": base64.b64encode(b"canary-7f3a").decode(), "username": None}}
    kube.kubectl("patch", "secret", "login", "--type=merge", "-p", json.dumps(password))
    kube.wait_for_condition("bkc", "broker", "Ready", "False", "AuthenticationFailed")
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "False", "AuthenticationFailed")
    assert "canary-7f3a" not in operator.log.read_text() + operator.metrics() + kube.kubectl(
        "get", "dlq,bkc,events", "-o", "yaml"
    )
    http = {"http": {"serviceRef": {"name": "billing", "port": 8080}}}
    kube.redis(redis, "open")
    source = {"name": f"src-{uuid.uuid4().hex[:8]}", "group": "billing"}
    kube.apply("DeadLetterQueue", "delivered", {"brokerRef": {"name": "open"}, "source": source, "delivery": http})
    kube.wait_for_condition("dlq", "delivered", "ReferencesResolved", "False", "ServiceNotFound")
    kube.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    kube.wait_for_condition("dlq", "delivered", "Ready", "False", "WaitingForCourier")


def test_a_secret_without_its_label_is_not_read(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], redis: str
) -> None:
    start(DLQ_SECRETS_REQUIRE_LABEL="true").wait_until_ready()
    kube.kubectl("create", "secret", "generic", "login", "--from-literal=password=x")
    kube.apply("BrokerConnection", "broker", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    found = kube.wait_for_condition("bkc", "broker", "Ready", "False", "SecretNotReadable")
    assert "deadletter.dev/readable=true" in found["message"]
    kube.kubectl("label", "secret", "login", "deadletter.dev/readable=true")
    kube.wait_for_condition("bkc", "broker", "Ready", "False", "AuthenticationFailed")
