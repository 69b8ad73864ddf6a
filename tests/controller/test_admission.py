"""The webhook on the real API server: what can never work is refused, what may heal is a warning, nothing more.

Refused are the sentences of the reconcile, on create, on update, and when the target of a reference is changed.
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


class Desk:
    """Writes objects of ours and keeps what the API server says."""

    def __init__(self, kube: KubeNamespace, server: Server) -> None:
        self.kube, self.server = kube, server

    def _path(self, kind: str, name: str = "") -> str:
        base = f"/apis/deadletter.dev/v1alpha1/namespaces/{self.kube.namespace}/{PLURALS[kind]}"
        return f"{base}/{name}" if name else base

    def create(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> str:
        """What is said against it; nothing: it was created."""
        whole = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": {"name": name} | meta, "spec": spec}
        return self._said(*self.server.request("POST", self._path(kind), whole))

    def change(self, kind: str, name: str, **patch: Any) -> str:
        """What is said against a merge patch."""
        return self._said(*self.server.request("PATCH", self._path(kind, name), patch, MERGE))

    def remove(self, kind: str, name: str) -> str:
        """What is said against deleting it."""
        return self._said(*self.server.request("DELETE", self._path(kind, name)))

    def _said(self, status: int, answer: dict[str, Any]) -> str:
        return "" if status < 300 else f"{status} {answer.get('message', '')}"

    @property
    def warned(self) -> list[str]:
        """The warnings of the last answer."""
        return self.server.warnings

    def known(self, kind: str, *names: str) -> None:
        """Wait until the operator has judged these as they are now."""

        def judged(name: str) -> bool:
            found = self.kube.get(kind, name)
            return bool(found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

        for name in names:
            wait_until(f"{kind} {name} is judged", lambda name=name: judged(name))


@pytest.fixture
def desk(kube: KubeNamespace, redis: str) -> Iterator[Desk]:
    """A namespace with a broker, and a client that hears warnings."""
    kube.redis(redis)
    server = Server(kube.server.kubeconfig)
    yield Desk(kube, server)
    server.close()


@pytest.fixture
def webhook(
    start: Callable[..., OperatorProcess], kube: KubeNamespace, tmp_path: Path
) -> Iterator[Callable[..., OperatorProcess]]:
    """Start an operator whose webhook judges this namespace; a slow answer is waited for."""
    name = f"dlq-{kube.namespace}"

    def serve(failure: str = "Fail", **more: str) -> OperatorProcess:
        port, certificates = str(ports.free(HOST)[0]), create_certificate(tmp_path)
        operator = start(DLQ_WEBHOOK_CERTIFICATES=str(certificates), DLQ_WEBHOOK_PORT=port, **more).wait_until_ready()
        wait_until("webhook", lambda: ports.answers(HOST, int(port)))
        patient = {"failurePolicy": failure, "timeoutSeconds": 30}
        whole = webhook_configuration(name, kube.namespace, port, certificates / "tls.crt", **patient)
        kube.server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(whole))
        server = Server(kube.server.kubeconfig)
        asked = Desk(kube, server)
        # The API server takes up a configuration when it comes to it, one webhook at a time.
        for kind, spec in (("RetryPolicy", NONSENSE), ("DeadLetterQueue", CEL), ("Replay", SELECT)):
            wait_until("webhook is asked", lambda kind=kind, spec=spec: asked.create(kind, f"probe-{unique()}", spec))
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


def test_what_can_never_work_is_refused_on_create(desk: Desk, webhook: Callable[..., OperatorProcess]) -> None:
    webhook()
    box = f"box-{unique()}"
    assert desk.create("DeadLetterQueue", "target", queue(box)) == ""
    assert desk.create("DeadLetterQueue", "orders", queue(routes=routes("target", "later"))) == ""
    desk.known("dlq", "target", "orders")
    said = desk.create("DeadLetterQueue", "itself", queue(routes=routes("itself")))
    assert "cannot reference itself" in said
    said = desk.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    assert f"DeadLetterQueue orders is a dead-letter target and {OWN}." in said
    said = desk.create("DeadLetterQueue", "later", queue(routes=routes("target")))
    assert f"DeadLetterQueue later is the dead-letter target of orders and {OWN}." in said
    said = desk.create("DeadLetterQueue", "later", queue(routes=routes("orders")))
    assert "DeadLetterQueue later and orders route to each other: a cycle." in said
    said = desk.create("DeadLetterQueue", "rival", queue(box))
    assert f"{box} is already the dead box of DeadLetterQueue target." in said
    far = queue(routes=routes("target")) | {"brokerRef": {"name": "far"}}
    assert "a route stays on one BrokerConnection" in desk.create("DeadLetterQueue", "far", far)
    redriven = queue(redrive={"strategy": "Automatic"})
    redriven["dead"] |= {"adopt": True, "dialect": "watermill"}
    assert "do not name the offset they came from" in desk.create("DeadLetterQueue", "redriven", redriven)


def test_what_can_never_work_is_refused_on_update_and_by_its_target(
    desk: Desk, webhook: Callable[..., OperatorProcess]
) -> None:
    box = f"box-{unique()}"
    desk.create("DeadLetterQueue", "target", queue(box))
    desk.create("DeadLetterQueue", "orders", queue(routes=routes("target")))
    desk.create("DeadLetterQueue", "free", queue())
    desk.create("DeadLetterQueue", "younger", queue(box))  # of two made in one second the first by name is older
    desk.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    webhook()
    desk.known("dlq", "target", "orders", "free", "younger", "chained")

    def reroute(name: str, *targets: str) -> str:
        return desk.change("DeadLetterQueue", name, spec={"routes": routes(*targets)})

    assert "cannot reference itself" in reroute("free", "free")
    assert f"orders is a dead-letter target and {OWN}" in reroute("free", "orders")
    assert f"target is the dead-letter target of orders and {OWN}" in reroute("target", "free")
    assert "target and orders route to each other: a cycle" in reroute("target", "orders")
    alerts = {"alerts": {"depth": 7}}
    said = desk.change("DeadLetterQueue", "younger", spec=alerts)
    assert f"{box} is already the dead box of DeadLetterQueue target." in said
    # What was refused is left as it was; what mends it is taken.
    assert OWN in desk.change("DeadLetterQueue", "chained", spec=alerts)
    assert desk.change("DeadLetterQueue", "chained", spec=alerts | {"routes": None}) == ""


def test_an_update_that_leaves_the_spec_or_comes_after_a_deletion_is_always_allowed(
    desk: Desk, webhook: Callable[..., OperatorProcess]
) -> None:
    held = {"finalizers": ["example.com/hold"]}
    desk.create("DeadLetterQueue", "target", queue())
    desk.create("DeadLetterQueue", "orders", queue(routes=routes("target")))
    desk.create("DeadLetterQueue", "chained", queue(routes=routes("orders")), **held)
    webhook(DLQ_WEBHOOK_DELETE_IN_USE="Deny")
    desk.known("dlq", "target", "orders", "chained")
    alerts = {"alerts": {"depth": 7}}
    assert OWN in desk.change("DeadLetterQueue", "chained", spec=alerts)
    assert desk.change("DeadLetterQueue", "chained", metadata={"labels": {"team": "payments"}}) == ""
    assert desk.remove("DeadLetterQueue", "chained") == ""
    assert desk.change("DeadLetterQueue", "chained", spec=alerts) == ""
    # One that is going no longer uses what it names.
    wait_until("orders is let go", lambda: desk.remove("DeadLetterQueue", "orders") == "")
    assert desk.change("DeadLetterQueue", "chained", metadata={"finalizers": None}) == ""
    wait_until("it is gone", lambda: not desk.kube.get("dlq", "chained"))


def test_an_expression_must_compile_and_say_yes_or_no(desk: Desk, webhook: Callable[..., OperatorProcess]) -> None:
    webhook()
    assert desk.create("DeadLetterQueue", "orders", queue()) == ""
    desk.known("dlq", "orders")
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
        said = desk.create(kind, f"bad-{unique()}", spec)
        assert sentence in said
        assert said.startswith("422 ")
    assert desk.create("RetryPolicy", "good", {"rules": [{"name": "x", "match": "error.status == 429"}]}) == ""
    assert desk.create("Replay", "good", select | {"select": {"where": "attempts < 9"}, "suspend": True}) == ""
    said = desk.change("RetryPolicy", "good", spec=NONSENSE)
    assert "spec.rules[1].match: 1:1: " in said


def test_a_replay_is_judged_by_what_its_queue_allows(desk: Desk, webhook: Callable[..., OperatorProcess]) -> None:
    webhook()
    nameless, watched = queue(), queue(redrive={"strategy": "Disabled"})
    nameless["dead"] |= {"adopt": True, "dialect": "cronsumer"}
    watched["dead"] |= {"adopt": True}
    assert desk.create("DeadLetterQueue", "nameless", nameless) == ""
    assert desk.create("DeadLetterQueue", "watched", watched) == ""
    desk.known("dlq", "nameless", "watched")

    def replay(queue_name: str, **more: Any) -> str:
        return desk.create("Replay", f"r-{unique()}", {"queueRef": {"name": queue_name}, "suspend": True} | more)

    assert "set spec.dead.origin of DeadLetterQueue nameless." in replay("nameless", to={"origin": True})
    assert replay("nameless", to={"name": "elsewhere"}) == ""
    assert "only observes (redrive Disabled)" in replay("watched")
    assert replay("watched", mode="DryRun") == ""
    assert replay("nowhere") == ""
    assert desk.warned == ["DeadLetterQueue nowhere does not exist; create it first."]


def test_what_is_missing_or_in_use_is_a_warning_by_default(desk: Desk, webhook: Callable[..., OperatorProcess]) -> None:
    webhook()
    spec = queue(retryPolicyRef={"name": "standard"}, routes=routes("later"))
    assert desk.create("DeadLetterQueue", "orders", spec | {"brokerRef": {"name": "nowhere"}}) == ""
    assert desk.warned == [
        "BrokerConnection nowhere does not exist; create it first.",
        "RetryPolicy standard does not exist; create it first.",
        "DeadLetterQueue later does not exist; create it first.",
    ]
    assert desk.create("RetryPolicy", "standard", {}) == ""
    for at in range(6):
        desk.create("DeadLetterQueue", f"q-{at}", queue(retryPolicyRef={"name": "standard"}))
    names = [f"q-{at}" for at in range(6)]
    desk.known("dlq", *names)
    assert desk.remove("RetryPolicy", "standard") == ""
    used = ", ".join(f"DeadLetterQueue {name}" for name in ["orders", *names[:4]])
    assert desk.warned == [f"RetryPolicy standard is still used by {used} and 2 more."]
    desk.kube.wait_for_condition("dlq", "q-0", "Ready", "False", "RetryPolicyNotFound")
    assert desk.remove("DeadLetterQueue", "q-0") == ""
    assert desk.warned == []


def test_what_is_missing_or_in_use_is_refused_when_told_so(desk: Desk, webhook: Callable[..., OperatorProcess]) -> None:
    webhook(DLQ_WEBHOOK_MISSING_REFERENCES="Deny", DLQ_WEBHOOK_DELETE_IN_USE="Deny")
    named = queue(retryPolicyRef={"name": "standard"})
    missing = {
        "BrokerConnection nowhere": named | {"brokerRef": {"name": "nowhere"}},
        "RetryPolicy standard": named,
        "DeadLetterQueue later": queue(routes=routes("later")),
    }
    for what, spec in missing.items():
        said = desk.create("DeadLetterQueue", "orders", spec)
        assert said.startswith("422 ")
        assert f"{what} does not exist; create it first." in said
    assert "DeadLetterQueue orders does not exist" in desk.create("Replay", "again", {"queueRef": {"name": "orders"}})
    assert desk.create("RetryPolicy", "standard", {}) == ""
    desk.known("rtp", "standard")
    desk.known("bkc", "broker")
    assert desk.create("DeadLetterQueue", "orders", named) == ""
    desk.known("dlq", "orders")
    assert desk.create("DeadLetterQueue", "routed", queue(routes=routes("orders"))) == ""
    assert desk.create("Replay", "again", {"queueRef": {"name": "orders"}, "suspend": True}) == ""
    desk.known("dlq", "routed")
    desk.known("rply", "again")
    in_use = {
        ("RetryPolicy", "standard"): "is still used by DeadLetterQueue orders.",
        ("BrokerConnection", "broker"): "is still used by DeadLetterQueue orders, DeadLetterQueue routed.",
        ("DeadLetterQueue", "orders"): "is still used by DeadLetterQueue routed, Replay again.",
    }
    for (kind, name), sentence in in_use.items():
        said = desk.remove(kind, name)
        assert said.startswith("409 ")
        assert f"{kind} {name} {sentence}" in said
    assert desk.remove("Replay", "again") == ""
    assert desk.remove("DeadLetterQueue", "routed") == ""
    wait_until("nobody uses it", lambda: desk.remove("DeadLetterQueue", "orders") == "")


def test_with_the_webhook_down_writes_go_through_and_the_reconcile_judges(
    desk: Desk, webhook: Callable[..., OperatorProcess], start: Callable[..., OperatorProcess]
) -> None:
    operator = webhook(failure="Ignore")
    assert desk.create("DeadLetterQueue", "target", queue()) == ""
    assert desk.create("DeadLetterQueue", "orders", queue(routes=routes("target"))) == ""
    desk.known("dlq", "target", "orders")
    assert OWN in desk.create("DeadLetterQueue", "chained", queue(routes=routes("orders")))
    operator.stop()
    assert desk.create("DeadLetterQueue", "chained", queue(routes=routes("orders"))) == ""
    assert desk.create("RetryPolicy", "bad", NONSENSE) == ""
    start().wait_until_ready()
    found = desk.kube.wait_for_condition("dlq", "chained", "ReferencesResolved", "False", "ChainedReference")
    assert OWN in found["message"]
    desk.kube.wait_for_condition("dlq", "chained", "Stalled", "True", "ChainedReference")
    found = desk.kube.wait_for_condition("rtp", "bad", "Stalled", "True", "InvalidSpec")
    assert found["message"].startswith("spec.rules[1].match: 1:1: ")
