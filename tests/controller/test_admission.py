"""The webhook on a real API server: a permanent problem is refused, a transient one is a warning at most.

The messages are those of the reconciler, on create, on update, and when the target of a reference changes.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.server import PLURALS, Server
from tests.bed import ports
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until
from tests.controller.webhook_config import HOST, create_certificate, webhook_configuration

NONSENSE = {"rules": [{"name": "fine", "match": "true"}, {"name": "x", "match": "1 + 1", "action": "Bury"}]}
OWN = "cannot have its own dead-letter queue"
MERGE = "application/merge-patch+json"


class ReviewClient:
    """Writes our objects and keeps the warnings of the API server."""

    def __init__(self, kube: KubeNamespace, server: Server) -> None:
        self.kube, self.server = kube, server

    def _path(self, kind: str, name: str = "") -> str:
        base = f"/apis/deadletter.dev/v1alpha1/namespaces/{self.kube.namespace}/{PLURALS[kind]}"
        return f"{base}/{name}" if name else base

    def create(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> str:
        """Create an object; return the error, or an empty string."""
        whole = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": {"name": name} | meta, "spec": spec}
        return self._error(*self.server.request("POST", self._path(kind), whole))

    def change(self, kind: str, name: str, **patch: Any) -> str:
        """Apply a merge patch; return the error, or an empty string."""
        return self._error(*self.server.request("PATCH", self._path(kind, name), patch, MERGE))

    def remove(self, kind: str, name: str) -> str:
        """Delete an object; return the error, or an empty string."""
        return self._error(*self.server.request("DELETE", self._path(kind, name)))

    def _error(self, status: int, answer: dict[str, Any]) -> str:
        return "" if status < 300 else f"{status} {answer.get('message', '')}"

    @property
    def warned(self) -> list[str]:
        """The warnings of the last response."""
        return self.server.warnings

    def wait_until_reconciled(self, kind: str, *names: str) -> None:
        """Wait until the operator has reconciled the current generation of these objects."""

        def is_reconciled(name: str) -> bool:
            found = self.kube.get(kind, name)
            return bool(found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

        for name in names:
            wait_until(f"{kind} {name} is reconciled", lambda name=name: is_reconciled(name))


@pytest.fixture
def client(kube: KubeNamespace, redis: str) -> Iterator[ReviewClient]:
    """A client in a namespace that has a BrokerConnection."""
    kube.redis(redis)
    server = Server(kube.server.kubeconfig)
    yield ReviewClient(kube, server)
    server.close()


@pytest.fixture
def webhook(
    start: Callable[..., OperatorProcess], kube: KubeNamespace, tmp_path: Path
) -> Iterator[Callable[..., OperatorProcess]]:
    """Start operators whose webhook reviews this namespace."""
    name = f"dlq-{kube.namespace}"

    def serve(failure: str = "Fail", **more: str) -> OperatorProcess:
        port, certificates = str(ports.free(HOST)[0]), create_certificate(tmp_path)
        operator = start(DLQ_WEBHOOK_CERTIFICATES=str(certificates), DLQ_WEBHOOK_PORT=port, **more).wait_until_ready()
        wait_until("webhook", lambda: ports.answers(HOST, int(port)))
        patient = {"failurePolicy": failure, "timeoutSeconds": 30}
        whole = webhook_configuration(name, kube.namespace, port, certificates / "tls.crt", **patient)
        kube.server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(whole))
        server = Server(kube.server.kubeconfig)
        probe = ReviewClient(kube, server)
        # The API server loads the configuration some time later, and one webhook at a time.
        for kind, spec in (("RetryPolicy", NONSENSE), ("DeadLetterQueue", CEL), ("Replay", SELECT)):
            wait_until("webhook is probe", lambda kind=kind, spec=spec: probe.create(kind, f"probe-{unique()}", spec))
        server.close()
        return operator

    yield serve
    kube.server.kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")


def unique() -> str:
    return uuid.uuid4().hex[:8]


def queue(dead: str = "", **more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": dead or f"dead-{unique()}"}} | more


def routes(*names: str, match: str = "attempts > 3") -> list[dict[str, Any]]:
    return [{"match": match, "queueRef": {"name": name}} for name in names]


CEL = queue(routes=routes("target", match="attempts +"))
SELECT = {"queueRef": {"name": "orders"}, "select": {"where": "nonsense +"}}


def test_permanent_problems_are_refused_on_create(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    webhook()
    box = f"box-{unique()}"
    assert client.create("DeadLetterQueue", "target", queue(box)) == ""
    assert client.create("DeadLetterQueue", "orders", queue(routes=routes("target", "later"))) == ""
    client.wait_until_reconciled("dlq", "target", "orders")
    error = client.create("DeadLetterQueue", "itself", queue(routes=routes("itself")))
    assert "must not reference the queue itself" in error
    error = client.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    assert f"DeadLetterQueue orders is a dead-letter target and {OWN}." in error
    error = client.create("DeadLetterQueue", "later", queue(routes=routes("target")))
    assert f"DeadLetterQueue later is the dead-letter target of orders and {OWN}." in error
    error = client.create("DeadLetterQueue", "later", queue(routes=routes("orders")))
    assert "DeadLetterQueue later and orders route to each other: a cycle." in error
    error = client.create("DeadLetterQueue", "rival", queue(box))
    assert f"{box} is already the dead box of DeadLetterQueue target." in error
    far = queue(routes=routes("target")) | {"brokerRef": {"name": "far"}}
    assert "a route stays on one broker" in client.create("DeadLetterQueue", "far", far)
    redriven = queue(redrive={"strategy": "Automatic"})
    redriven["dead"] |= {"adopt": True, "dialect": "watermill"}
    assert "do not name the offset they came from" in client.create("DeadLetterQueue", "redriven", redriven)


def test_permanent_problems_are_refused_on_update_of_either_side(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    box = f"box-{unique()}"
    client.create("DeadLetterQueue", "target", queue(box))
    client.create("DeadLetterQueue", "orders", queue(routes=routes("target")))
    client.create("DeadLetterQueue", "free", queue())
    # Of objects created in the same second, the first by name counts as older.
    client.create("DeadLetterQueue", "younger", queue(box))
    client.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    webhook()
    client.wait_until_reconciled("dlq", "target", "orders", "free", "younger", "chained")

    def reroute(name: str, *targets: str) -> str:
        return client.change("DeadLetterQueue", name, spec={"routes": routes(*targets)})

    assert "must not reference the queue itself" in reroute("free", "free")
    assert f"orders is a dead-letter target and {OWN}" in reroute("free", "orders")
    assert f"target is the dead-letter target of orders and {OWN}" in reroute("target", "free")
    assert "target and orders route to each other: a cycle" in reroute("target", "orders")
    alerts = {"alerts": {"depth": 7}}
    error = client.change("DeadLetterQueue", "younger", spec=alerts)
    assert f"{box} is already the dead box of DeadLetterQueue target." in error
    # A refused update changes nothing; one that repairs the object is accepted.
    assert OWN in client.change("DeadLetterQueue", "chained", spec=alerts)
    assert client.change("DeadLetterQueue", "chained", spec=alerts | {"routes": None}) == ""


def test_updates_of_metadata_and_of_deleted_objects_are_always_allowed(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    held = {"finalizers": ["example.com/hold"]}
    client.create("DeadLetterQueue", "target", queue())
    client.create("DeadLetterQueue", "orders", queue(routes=routes("target")))
    client.create("DeadLetterQueue", "chained", queue(routes=routes("orders")), **held)
    webhook(DLQ_WEBHOOK_DELETE_IN_USE="Deny")
    client.wait_until_reconciled("dlq", "target", "orders", "chained")
    alerts = {"alerts": {"depth": 7}}
    assert OWN in client.change("DeadLetterQueue", "chained", spec=alerts)
    assert client.change("DeadLetterQueue", "chained", metadata={"labels": {"team": "payments"}}) == ""
    assert client.remove("DeadLetterQueue", "chained") == ""
    assert client.change("DeadLetterQueue", "chained", spec=alerts) == ""
    # An object that is being deleted does not count as a user.
    wait_until("orders is let go", lambda: client.remove("DeadLetterQueue", "orders") == "")
    assert client.change("DeadLetterQueue", "chained", metadata={"finalizers": None}) == ""
    wait_until("it is gone", lambda: not client.kube.get("dlq", "chained"))


def test_an_expression_must_compile_to_a_bool(client: ReviewClient, webhook: Callable[..., OperatorProcess]) -> None:
    webhook()
    assert client.create("DeadLetterQueue", "orders", queue()) == ""
    client.wait_until_reconciled("dlq", "orders")
    adopted = queue(redrive={"strategy": "Selective", "where": "attempts"})
    adopted["dead"]["adopt"] = True
    select = {"queueRef": {"name": "orders"}}
    refused = {
        "spec.routes[0].match: 1:11: ": ("DeadLetterQueue", CEL),
        "spec.redrive.where: 1:1: ": ("DeadLetterQueue", adopted),
        "spec.rules[1].match: 1:1: ": ("RetryPolicy", NONSENSE),
        "spec.select.where: 1:11: ": ("Replay", SELECT),
        "spec.select.where: 1:9: ": ("Replay", select | {"select": {"where": "true  &&& false"}}),
    }
    for sentence, (kind, spec) in refused.items():
        error = client.create(kind, f"bad-{unique()}", spec)
        assert sentence in error
        assert error.startswith("422 ")
    assert client.create("RetryPolicy", "good", {"rules": [{"name": "x", "match": "error.status == 429"}]}) == ""
    assert client.create("Replay", "good", select | {"select": {"where": "attempts < 9"}, "suspend": True}) == ""
    error = client.change("RetryPolicy", "good", spec=NONSENSE)
    assert "spec.rules[1].match: 1:1: " in error


def test_a_replay_that_its_queue_does_not_allow_is_refused(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    webhook()
    nameless, watched = queue(), queue(redrive={"strategy": "Disabled"})
    nameless["dead"] |= {"adopt": True, "dialect": "cronsumer"}
    watched["dead"] |= {"adopt": True}
    assert client.create("DeadLetterQueue", "nameless", nameless) == ""
    assert client.create("DeadLetterQueue", "watched", watched) == ""
    client.wait_until_reconciled("dlq", "nameless", "watched")

    def replay(queue_name: str, **more: Any) -> str:
        return client.create("Replay", f"r-{unique()}", {"queueRef": {"name": queue_name}, "suspend": True} | more)

    assert "set spec.dead.origin of DeadLetterQueue nameless." in replay("nameless", to={"origin": True})
    assert replay("nameless", to={"name": "elsewhere"}) == ""
    assert "only observes (redrive Disabled)" in replay("watched")
    assert replay("watched", mode="DryRun") == ""
    assert replay("nowhere") == ""
    assert client.warned == ["DeadLetterQueue nowhere does not exist; create it first."]


def test_missing_references_and_deletions_in_use_are_warnings_by_default(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    webhook()
    spec = queue(retryPolicyRef={"name": "standard"}, routes=routes("later"))
    assert client.create("DeadLetterQueue", "orders", spec | {"brokerRef": {"name": "nowhere"}}) == ""
    assert client.warned == [
        "BrokerConnection nowhere does not exist; create it first.",
        "RetryPolicy standard does not exist; create it first.",
        "DeadLetterQueue later does not exist; create it first.",
    ]
    assert client.create("RetryPolicy", "standard", {}) == ""
    for at in range(6):
        client.create("DeadLetterQueue", f"q-{at}", queue(retryPolicyRef={"name": "standard"}))
    names = [f"q-{at}" for at in range(6)]
    client.wait_until_reconciled("dlq", *names)
    assert client.remove("RetryPolicy", "standard") == ""
    used = ", ".join(f"DeadLetterQueue {name}" for name in ["orders", *names[:4]])
    assert client.warned == [f"RetryPolicy standard is still used by {used} and 2 more."]
    client.kube.wait_for_condition("dlq", "q-0", "Ready", "False", "RetryPolicyNotFound")
    assert client.remove("DeadLetterQueue", "q-0") == ""
    assert client.warned == []


def test_missing_references_and_deletions_in_use_are_refused_if_configured(
    client: ReviewClient, webhook: Callable[..., OperatorProcess]
) -> None:
    webhook(DLQ_WEBHOOK_MISSING_REFERENCES="Deny", DLQ_WEBHOOK_DELETE_IN_USE="Deny")
    named = queue(retryPolicyRef={"name": "standard"})
    missing = {
        "BrokerConnection nowhere": named | {"brokerRef": {"name": "nowhere"}},
        "RetryPolicy standard": named,
        "DeadLetterQueue later": queue(routes=routes("later")),
    }
    for what, spec in missing.items():
        error = client.create("DeadLetterQueue", "orders", spec)
        assert error.startswith("422 ")
        assert f"{what} does not exist; create it first." in error
    assert "DeadLetterQueue orders does not exist" in client.create("Replay", "again", {"queueRef": {"name": "orders"}})
    assert client.create("RetryPolicy", "standard", {}) == ""
    client.wait_until_reconciled("rtp", "standard")
    client.wait_until_reconciled("bkc", "broker")
    assert client.create("DeadLetterQueue", "orders", named) == ""
    client.wait_until_reconciled("dlq", "orders")
    assert client.create("DeadLetterQueue", "routed", queue(routes=routes("orders"))) == ""
    assert client.create("Replay", "again", {"queueRef": {"name": "orders"}, "suspend": True}) == ""
    client.wait_until_reconciled("dlq", "routed")
    client.wait_until_reconciled("rply", "again")
    in_use = {
        ("RetryPolicy", "standard"): "is still used by DeadLetterQueue orders.",
        ("BrokerConnection", "broker"): "is still used by DeadLetterQueue orders, DeadLetterQueue routed.",
        ("DeadLetterQueue", "orders"): "is still used by DeadLetterQueue routed, Replay again.",
    }
    for (kind, name), sentence in in_use.items():
        error = client.remove(kind, name)
        assert error.startswith("409 ")
        assert f"{kind} {name} {sentence}" in error
    assert client.remove("Replay", "again") == ""
    assert client.remove("DeadLetterQueue", "routed") == ""
    wait_until("it is not in use", lambda: client.remove("DeadLetterQueue", "orders") == "")


def test_without_the_webhook_the_reconciler_reports_the_same_problems(
    client: ReviewClient, webhook: Callable[..., OperatorProcess], start: Callable[..., OperatorProcess]
) -> None:
    operator = webhook(failure="Ignore")
    assert client.create("DeadLetterQueue", "target", queue()) == ""
    assert client.create("DeadLetterQueue", "orders", queue(routes=routes("target"))) == ""
    client.wait_until_reconciled("dlq", "target", "orders")
    assert OWN in client.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    operator.stop()
    assert client.create("DeadLetterQueue", "chained", queue(routes=routes("orders"))) == ""
    assert client.create("RetryPolicy", "bad", NONSENSE) == ""
    start().wait_until_ready()
    found = client.kube.wait_for_condition("dlq", "chained", "ReferencesResolved", "False", "ChainedReference")
    assert OWN in found["message"]
    client.kube.wait_for_condition("dlq", "chained", "Stalled", "True", "ChainedReference")
    found = client.kube.wait_for_condition("rtp", "bad", "Stalled", "True", "InvalidSpec")
    assert found["message"].startswith("spec.rules[1].match: 1:1: ")
