"""The operator lives with the chart's own rights; it uses every one of them, and none is a wildcard."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controller.operators import Place, rights, roles, running, until
from tests.controller.proxies import Asked, Proxy

VALUES = ("workers.networkPolicy=true", "workers.podMonitor=true", "secrets.readable=true")
OPTIONS = {"DLQ_WORKER_NETWORK_POLICY": "true", "DLQ_WORKER_POD_MONITOR": "true"}
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
POD_MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    },
}


def rules(manifests: str, kind: str) -> list[dict[str, Any]]:
    found = [one for one in yaml.safe_load_all(manifests) if one and one["kind"] == kind]
    return [rule for one in found for rule in one["rules"]]


def granted(given: list[dict[str, Any]]) -> set[Asked]:
    return {
        Asked(verb, group, resource)
        for rule in given
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_a_role_per_namespace_gives_what_the_cluster_role_gives() -> None:
    wide = granted(rules(roles("x", *VALUES), "ClusterRole"))
    assert wide == granted(rules(roles("x", "watchNamespaces={x}", *VALUES), "Role"))
    assert not [one for one in wide if "*" in "".join(one)]
    assert {one.verb for one in wide if one.resource == "secrets"} == {"get"}


@pytest.mark.timeout(600)
def test_every_right_is_used(place: Place, redis: str, tmp_path: Path) -> None:
    place.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(POD_MONITORS))
    place.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", POD_MONITORS["metadata"]["name"])
    given = granted(rules(roles("x", "watchNamespaces={x}", *VALUES), "Role"))
    with Proxy(place.server) as proxy:
        config = proxy.kubeconfig(rights(place.server, place.namespace, tmp_path, *VALUES))
        with running(config, place.namespace, tmp_path / "operator.log", **OPTIONS) as operator:
            operator.until_ready()
            live_every_life(place, redis)
            until(f"every right is used; not yet {given - proxy.used.keys()}", lambda: given <= proxy.used.keys())
    told = operator.log.read_text()
    assert "Api403" not in told
    assert '"status": 403' not in told


def test_a_tenant_grants_the_right_to_its_secrets_with_the_command_of_the_condition(
    place: Place, redis: str, tmp_path: Path
) -> None:
    values = (f"watchNamespaces={{{place.namespace}}}", "secrets.readable=false")
    (deployment,) = yaml.safe_load_all(roles(place.namespace, *values, parts=["deployment"]))
    told = {one["name"]: one["value"] for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    config = rights(place.server, place.namespace, tmp_path, values[1])
    place.kubectl("create", "secret", "generic", "login", "--from-literal=username=x")
    with running(config, place.namespace, tmp_path / "log", DLQ_SECRETS_GRANT=told["DLQ_SECRETS_GRANT"]):
        place.apply("BrokerConnection", "locked", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
        said = place.until_condition("bkc", "locked", "Ready", "False", "SecretNotReadable")
        _, command = said["message"].split("kubectl ")
        place.server.kubectl(*command.split())
        place.until_condition("bkc", "locked", "Ready", "False", "SecretKeyMissing")


def live_every_life(place: Place, redis: str) -> None:
    """Everything the operator does for anybody: names that are not there yet, children that come and go, endings."""
    boxes = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "dead")]
    place.apply("Replay", "lost", {"queueRef": {"name": "orders"}, "previewRef": {"name": "nothing"}})
    http = {"serviceRef": {"name": "billing", "port": 8080}}
    spec = {"brokerRef": {"name": "broker"}, "source": {"name": boxes[0], "group": "billing"}}
    spec |= {"delivery": {"http": http}, "retryPolicyRef": {"name": "slow"}, "deletionPolicy": "Delete"}
    routes = [{"match": "attempts > 1", "queueRef": {"name": "plain"}}]
    place.apply("DeadLetterQueue", "orders", spec | {"routes": routes})
    place.until_condition("dlq", "orders", "Ready", "False", "BrokerConnectionNotFound")
    place.kubectl("create", "secret", "generic", "login", "--from-literal=other=x")
    place.apply("BrokerConnection", "locked", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    place.redis(redis)
    place.until_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")
    place.apply("RetryPolicy", "slow", {})
    place.until_condition("dlq", "orders", "Ready", "False", "QueueNotFound")
    plain = {"brokerRef": {"name": "broker"}, "dead": {"name": boxes[1]}}
    place.apply("DeadLetterQueue", "plain", plain | {"redrive": {"strategy": "Automatic"}})
    place.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    place.until_condition("dlq", "orders", "Ready", "False", "WaitingForCourier")
    until("a redrive", lambda: place.get("podmonitor", "plain-redrive"))
    place.apply("DeadLetterQueue", "plain", plain)
    until("no redrive", lambda: not place.get("podmonitor", "plain-redrive"))
    short = {"queueRef": {"name": "plain"}, "activeDeadline": "1s", "ttlSecondsAfterFinished": 0}
    place.apply("Replay", "short", short)
    until("it ended and went", lambda: not place.get("rply", "short"))
    place.kubectl("delete", "dlq", "orders", "--timeout=120s")
    place.apply("DeadLetterQueue", "plain", plain | {"deletionPolicy": "Delete"})
    until("it holds on", lambda: place.get("dlq", "plain")["metadata"].get("finalizers"))
    place.redis("redis://127.0.0.1:1/0")  # nobody listens there
    place.kubectl("delete", "dlq", "plain", "--wait=false")
    place.until_condition("dlq", "plain", "Ready", "False", "DeletionBlocked")
    place.kubectl("annotate", "dlq", "plain", "deadletter.dev/force-delete=true")
