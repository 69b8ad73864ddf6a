"""The chart grants exactly the rights that the operator uses, and no wildcard."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controller.api_proxy import Access, ApiProxy
from tests.controller.operator_process import (
    KubeNamespace,
    create_kubeconfig,
    render_chart,
    running_operator,
    wait_until,
)

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


def granted(given: list[dict[str, Any]]) -> set[Access]:
    return {
        Access(verb, group, resource)
        for rule in given
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_namespaced_roles_grant_the_same_as_the_cluster_role() -> None:
    wide = granted(rules(render_chart("x", *VALUES), "ClusterRole"))
    assert wide == granted(rules(render_chart("x", "watchNamespaces={x}", *VALUES), "Role"))
    assert not [one for one in wide if "*" in "".join(one)]
    assert {one.verb for one in wide if one.resource == "secrets"} == {"get"}


@pytest.mark.timeout(600)
def test_every_right_is_used(kube: KubeNamespace, redis: str, tmp_path: Path) -> None:
    kube.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(POD_MONITORS))
    kube.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", POD_MONITORS["metadata"]["name"])
    given = granted(rules(render_chart("x", "watchNamespaces={x}", *VALUES), "Role"))
    with ApiProxy(kube.server) as proxy:
        config = proxy.kubeconfig(create_kubeconfig(kube.server, kube.namespace, tmp_path, *VALUES))
        with running_operator(config, kube.namespace, tmp_path / "operator.log", **OPTIONS) as operator:
            operator.wait_until_ready()
            use_every_right(kube, redis)
            wait_until(
                f"every right is used; not yet {given - proxy.used_access.keys()}",
                lambda: given <= proxy.used_access.keys(),
            )
    log = operator.log.read_text()
    assert "Api403" not in log
    assert '"status": 403' not in log


def test_the_command_in_the_condition_grants_access_to_secrets(kube: KubeNamespace, redis: str, tmp_path: Path) -> None:
    values = (f"watchNamespaces={{{kube.namespace}}}", "secrets.readable=false")
    (deployment,) = yaml.safe_load_all(render_chart(kube.namespace, *values, templates=["deployment"]))
    environment = {one["name"]: one["value"] for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    config = create_kubeconfig(kube.server, kube.namespace, tmp_path, values[1])
    kube.kubectl("create", "secret", "generic", "login", "--from-literal=username=x")
    with running_operator(config, kube.namespace, tmp_path / "log", DLQ_SECRETS_GRANT=environment["DLQ_SECRETS_GRANT"]):
        kube.apply("BrokerConnection", "locked", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
        condition = kube.wait_for_condition("bkc", "locked", "Ready", "False", "SecretNotReadable")
        _, command = condition["message"].split("kubectl ")
        kube.server.kubectl(*command.split())
        kube.wait_for_condition("bkc", "locked", "Ready", "False", "SecretKeyMissing")


def use_every_right(kube: KubeNamespace, redis: str) -> None:
    """Make the operator use each of its rights: missing references, created and deleted children, deletions."""
    boxes = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "dead")]
    kube.apply("Replay", "lost", {"queueRef": {"name": "orders"}, "previewRef": {"name": "nothing"}})
    http = {"serviceRef": {"name": "billing", "port": 8080}}
    spec = {"brokerRef": {"name": "broker"}, "source": {"name": boxes[0], "group": "billing"}}
    spec |= {"delivery": {"http": http}, "retryPolicyRef": {"name": "slow"}, "deletionPolicy": "Delete"}
    routes = [{"match": "attempts > 1", "queueRef": {"name": "plain"}}]
    kube.apply("DeadLetterQueue", "orders", spec | {"routes": routes})
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "BrokerConnectionNotFound")
    kube.kubectl("create", "secret", "generic", "login", "--from-literal=other=x")
    kube.apply("BrokerConnection", "locked", {"redis": {"url": redis, "secretRef": {"name": "login"}}})
    kube.redis(redis)
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")
    kube.apply("RetryPolicy", "slow", {})
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "QueueNotFound")
    plain = {"brokerRef": {"name": "broker"}, "dead": {"name": boxes[1]}}
    kube.apply("DeadLetterQueue", "plain", plain | {"redrive": {"strategy": "Automatic"}})
    kube.kubectl("create", "service", "clusterip", "billing", "--tcp=8080:8080")
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "WaitingForCourier")
    wait_until("a redrive", lambda: kube.get("podmonitor", "plain-redrive"))
    kube.apply("DeadLetterQueue", "plain", plain)
    wait_until("no redrive", lambda: not kube.get("podmonitor", "plain-redrive"))
    short = {"queueRef": {"name": "plain"}, "activeDeadline": "1s", "ttlSecondsAfterFinished": 0}
    kube.apply("Replay", "short", short)
    wait_until("it ended and went", lambda: not kube.get("rply", "short"))
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    kube.apply("DeadLetterQueue", "plain", plain | {"deletionPolicy": "Delete"})
    wait_until("it holds on", lambda: kube.get("dlq", "plain")["metadata"].get("finalizers"))
    kube.redis("redis://127.0.0.1:1/0")  # a closed port
    kube.kubectl("delete", "dlq", "plain", "--wait=false")
    kube.wait_for_condition("dlq", "plain", "Ready", "False", "DeletionBlocked")
    kube.kubectl("annotate", "dlq", "plain", "deadletter.dev/force-delete=true")
