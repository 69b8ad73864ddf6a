"""The webhook on a real API server, with the chart's own paths: exact sentences, and no more refused than must be."""

import base64
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bed import binaries, places, ports, tools
from tests.bed.processes import BedError
from tests.handlers.operators import Operator, Place, until

NONSENSE = {"rules": [{"name": "x", "match": "1 + 1", "action": "Bury"}]}


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    pair = ["-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")]
    alone = ["-addext", "subjectAltName=IP:127.0.0.1", "-subj", "/CN=webhook", "-days", "3", "-nodes"]
    tools.run([tools.path("openssl"), "req", "-x509", "-newkey", "rsa:2048", *alone, *pair])
    return tmp_path


@pytest.fixture
def webhook(start: Callable[..., Operator], place: Place, certificates: Path) -> Iterator[Callable[..., Operator]]:
    """Start an operator whose webhook judges this namespace."""
    name = f"dlq-{place.namespace}"

    def serve(**more: str) -> Operator:
        port = str(ports.free("127.0.0.1")[0])
        operator = start(DLQ_WEBHOOK_CERTIFICATES=str(certificates), DLQ_WEBHOOK_PORT=port, **more).until_ready()
        until("webhook", lambda: ports.answers("127.0.0.1", int(port)))
        place.server.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump(configured(name, place.namespace, port, certificates))
        )
        # The API server takes up a configuration when it comes to it.
        until("webhook is asked", lambda: refusal(place, "RetryPolicy", f"probe-{uuid.uuid4().hex[:8]}", NONSENSE))
        return operator

    yield serve
    place.server.kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")


def configured(name: str, namespace: str, port: str, certificates: Path) -> dict[str, Any]:
    """The chart's configuration, for one namespace and a server beside the API server. A slow answer is waited for."""
    words = ["template", "dlq", str(places.REPOSITORY / "charts" / "dlq-operator"), "--set", "webhook.enabled=true"]
    text = tools.run([str(binaries.path("helm")), *words, "--show-only", "templates/webhook.yaml"], timeout=120)
    whole = next(one for one in yaml.safe_load_all(text) if one and one["kind"] == "ValidatingWebhookConfiguration")
    whole["metadata"] = {"name": name}
    authority = base64.b64encode((certificates / "tls.crt").read_bytes()).decode()
    for one in whole["webhooks"]:
        path = one["clientConfig"]["service"]["path"]
        one["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        one["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        one |= {"failurePolicy": "Fail", "timeoutSeconds": 30}
    return whole


def refusal(place: Place, kind: str, name: str, spec: dict[str, Any]) -> str:
    """What the server says when it refuses; nothing when it takes it."""
    try:
        place.apply(kind, name, spec)
    except BedError as error:
        return str(error)
    return ""


def queue(dead: str = "", **more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": dead or f"dead-{uuid.uuid4().hex[:8]}"}} | more


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": "attempts > 3", "queueRef": {"name": name}} for name in names]


def known(place: Place, operator: Operator, *names: str) -> None:
    """Wait until the operator has seen these queues."""
    for name in names:
        until(name, lambda name=name: place.get("dlq", name).get("status", {}).get("observedGeneration"))


def test_what_can_never_heal_is_refused(place: Place, webhook: Callable[..., Operator], redis: str) -> None:
    operator = webhook()
    place.redis(redis)
    place.apply("DeadLetterQueue", "target", queue("box-of-target"))
    place.apply("DeadLetterQueue", "orders", queue(routes=routes("target")))
    known(place, operator, "target", "orders")
    said = refusal(place, "DeadLetterQueue", "chained", queue(routes=routes("orders")))
    assert "cannot have its own dead-letter queue" in said
    changed = place.get("dlq", "target")["spec"] | {"routes": routes("other")}
    assert "cannot have its own dead-letter queue" in refusal(place, "DeadLetterQueue", "target", changed)
    changed = place.get("dlq", "target")["spec"] | {"routes": routes("orders")}
    assert "a cycle" in refusal(place, "DeadLetterQueue", "target", changed)
    said = refusal(place, "DeadLetterQueue", "rival", queue("box-of-target"))
    assert "box-of-target is already the dead box of DeadLetterQueue target" in said
    said = refusal(
        place, "DeadLetterQueue", "cel", queue(routes=[{"match": "attempts +", "queueRef": {"name": "target"}}])
    )
    assert "spec.routes[0].match: 1:" in said
    assert "spec.rules: " in refusal(place, "RetryPolicy", "bad", NONSENSE)
    assert "cannot reference itself" in refusal(place, "DeadLetterQueue", "self", queue(routes=routes("self")))
    said = refusal(place, "Replay", "bad", {"queueRef": {"name": "orders"}, "select": {"where": "nonsense +"}})
    assert "spec.select.where: 1:" in said
    # What leaves the spec as it was is always allowed.
    place.kubectl("label", "dlq", "orders", "team=payments")
    place.kubectl("delete", "dlq", "orders", "target")


def test_what_is_missing_or_in_use_is_a_warning_or_refused(
    place: Place, webhook: Callable[..., Operator], redis: str
) -> None:
    operator = webhook(DLQ_WEBHOOK_MISSING_REFERENCES="Deny", DLQ_WEBHOOK_DELETE_IN_USE="Deny")
    said = refusal(place, "DeadLetterQueue", "orders", queue())
    assert "BrokerConnection broker does not exist; create it first." in said
    place.redis(redis)
    place.apply("RetryPolicy", "standard", {})
    until("known", lambda: place.get("rtp", "standard").get("status"))
    until("known", lambda: place.get("bkc", "broker").get("status"))
    place.apply("DeadLetterQueue", "orders", queue(retryPolicyRef={"name": "standard"}))
    known(place, operator, "orders")
    with pytest.raises(BedError, match="RetryPolicy standard is still used by DeadLetterQueue orders"):
        place.kubectl("delete", "rtp", "standard")
    with pytest.raises(BedError, match="BrokerConnection broker is still used by DeadLetterQueue orders"):
        place.kubectl("delete", "bkc", "broker")
    operator.stop()


def test_by_default_it_only_warns(place: Place, webhook: Callable[..., Operator], redis: str) -> None:
    operator = webhook()
    place.apply("DeadLetterQueue", "orders", queue(retryPolicyRef={"name": "standard"}))
    place.redis(redis)
    place.apply("RetryPolicy", "standard", {})
    known(place, operator, "orders")
    place.until_condition("dlq", "orders", "Ready", "True")
    place.kubectl("delete", "rtp", "standard")
    place.until_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")
