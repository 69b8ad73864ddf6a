"""Every reference reason in a condition, and how each heals."""

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

from tests.controller.operators import Operator, Place


def plain(**more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}} | more


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": 'error.category == "Validation"', "queueRef": {"name": name}} for name in names]


def test_what_is_missing_is_said_and_heals(place: Place, operator: Operator, redis: str) -> None:
    place.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}, routes=routes("other")))
    found = place.until_condition("dlq", "orders", "ReferencesResolved", "False", "BrokerConnectionNotFound")
    assert found["message"] == "BrokerConnection broker does not exist; create it first."
    assert place.condition("dlq", "orders", "Ready")["status"] == "False"
    assert place.condition("dlq", "orders", "Reconciling")["status"] == "True"
    place.redis(redis)
    found = place.until_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
    assert found["message"] == "RetryPolicy slow does not exist; create it first."
    place.apply("RetryPolicy", "slow", {"maxAttempts": 3})
    found = place.until_condition("dlq", "orders", "ReferencesResolved", "False", "QueueNotFound")
    assert found["message"] == "DeadLetterQueue other does not exist; create it first."
    place.apply("DeadLetterQueue", "other", plain())
    place.until_condition("dlq", "orders", "Ready", "True", "Reconciled")
    place.kubectl("delete", "rtp", "slow")
    place.until_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")


def test_what_can_never_heal_stalls(place: Place, operator: Operator, redis: str) -> None:
    place.redis(redis)
    place.redis(redis, "elsewhere")
    place.apply("DeadLetterQueue", "c", plain())
    place.apply("DeadLetterQueue", "b", plain(routes=routes("c")))
    place.apply("DeadLetterQueue", "a", plain(routes=routes("b")))
    found = place.until_condition("dlq", "a", "Stalled", "True", "ChainedReference")
    assert "cannot have its own dead-letter queue" in found["message"]
    place.apply("DeadLetterQueue", "c", place.get("dlq", "c")["spec"] | {"routes": routes("b")})
    found = place.until_condition("dlq", "c", "Stalled", "True", "CyclicReference")
    assert "a cycle" in found["message"]
    place.apply("DeadLetterQueue", "far", plain(brokerRef={"name": "elsewhere"}))
    place.apply("DeadLetterQueue", "near", plain(routes=routes("far")))
    place.until_condition("dlq", "near", "Stalled", "True", "BrokerMismatch")
    place.apply("DeadLetterQueue", "cel", plain(redrive={"strategy": "Selective", "where": "attempts +"}))
    found = place.until_condition("dlq", "cel", "Stalled", "True", "InvalidSpec")
    assert found["message"].startswith("spec.redrive.where: ")
    place.apply("RetryPolicy", "bad", {"rules": [{"name": "x", "match": "1 + 1", "action": "Bury"}]})
    place.until_condition("rtp", "bad", "Ready", "False", "InvalidSpec")


def test_secrets_and_services(place: Place, operator: Operator, redis: str) -> None:
    place.apply("BrokerConnection", "broker", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    place.until_condition("bkc", "broker", "Ready", "False", "SecretNotFound")
    place.apply("DeadLetterQueue", "orders", plain())
    place.until_condition("dlq", "orders", "ReferencesResolved", "False", "SecretNotFound")
    place.kubectl("create", "secret", "generic", "login", "--from-literal=username=orders")
    said = place.until_condition("bkc", "broker", "Ready", "False", "SecretKeyMissing")
    assert said["message"] == "Secret login has no key password; add it."
    place.until_condition("dlq", "orders", "ReferencesResolved", "False", "SecretKeyMissing")
    password = {"data": {"password": base64.b64encode(b"canary-7f3a").decode(), "username": None}}
    place.kubectl("patch", "secret", "login", "--type=merge", "-p", json.dumps(password))
    place.until_condition("bkc", "broker", "Ready", "False", "AuthenticationFailed")
    place.until_condition("dlq", "orders", "BoxesReady", "False", "AuthenticationFailed")
    assert "canary-7f3a" not in operator.log.read_text() + operator.metrics() + place.kubectl(
        "get", "dlq,bkc,events", "-o", "yaml"
    )
    http = {"http": {"serviceRef": {"name": "billing", "port": 8080}}}
    place.redis(redis, "open")
    source = {"name": f"src-{uuid.uuid4().hex[:8]}", "group": "billing"}
    place.apply("DeadLetterQueue", "told", {"brokerRef": {"name": "open"}, "source": source, "delivery": http})
    place.until_condition("dlq", "told", "ReferencesResolved", "False", "ServiceNotFound")
    place.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    place.until_condition("dlq", "told", "Ready", "False", "WaitingForCourier")


def test_a_secret_without_its_label_is_not_read(place: Place, start: Callable[..., Operator], redis: str) -> None:
    start(DLQ_SECRETS_REQUIRE_LABEL="true").until_ready()
    place.kubectl("create", "secret", "generic", "login", "--from-literal=password=x")
    place.apply("BrokerConnection", "broker", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    found = place.until_condition("bkc", "broker", "Ready", "False", "SecretNotReadable")
    assert "deadletter.dev/readable=true" in found["message"]
    place.kubectl("label", "secret", "login", "deadletter.dev/readable=true")
    place.until_condition("bkc", "broker", "Ready", "False", "AuthenticationFailed")
