"""Every value of the chart has an effect: each has a case with a text that it adds to the manifests or removes."""

import json
from functools import cache
from typing import Any

import pytest

from tests.bed.processes import BedError
from tests.chart.rendering import render
from tools import chart_readme

pytestmark = pytest.mark.server

REQUIRED_VALUES = {
    "monitoring.serviceMonitor": {"monitoring.serviceMonitor.enabled": True},
    "monitoring.prometheusRule": {"monitoring.prometheusRule.enabled": True},
    "monitoring.dashboard": {"monitoring.dashboard.enabled": True},
    "podDisruptionBudget": {"podDisruptionBudget.enabled": True},
    "webhook.certManager": {"webhook.certManager.enabled": True},
}
TOLERATION = [{"key": "dedicated", "operator": "Exists"}]
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]
AFFINITY = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
# A value other than the default, and a text that is rendered only with it, or with `-` only without it.
CASES: dict[str, tuple[Any, str]] = {
    "nameOverride": ("letters", "release-letters"),
    "fullnameOverride": ("whole", '"name": "whole"'),
    "commonLabels": ({"team": "platform"}, '"team": "platform"'),
    "image.repository": ("registry.example/dlq", "registry.example/dlq:"),
    "image.tag": ("9.9.9", ":9.9.9"),
    "image.pullPolicy": ("Always", '"imagePullPolicy": "Always"'),
    "imagePullSecrets": ([{"name": "pull"}], '"imagePullSecrets": [{"name": "pull"}]'),
    "watchNamespaces": (["shop"], '"namespace": "shop"'),
    "crds.enabled": (False, "-CustomResourceDefinition"),
    "crds.keep": (False, '-"helm.sh/resource-policy": "keep"'),
    "secrets.readable": (False, '-"name": "dlq-release-dlq-operator-secrets"}, "subjects"'),
    "secrets.requireLabel": (True, '"DLQ_SECRETS_REQUIRE_LABEL", "value": "true"'),
    "allowAddresses": (["127.0.0.0/8"], '"value": "127.0.0.0/8"'),
    "webhook.enabled": (False, "-ValidatingWebhookConfiguration"),
    "webhook.missingReferences": ("Deny", '"DLQ_WEBHOOK_MISSING_REFERENCES", "value": "Deny"'),
    "webhook.deleteInUse": ("Deny", '"DLQ_WEBHOOK_DELETE_IN_USE", "value": "Deny"'),
    "webhook.timeoutSeconds": (7, '"timeoutSeconds": 7'),
    "webhook.certManager.enabled": (True, '"kind": "Certificate"'),
    "webhook.certManager.issuerRef": ({"name": "ours", "kind": "ClusterIssuer"}, '"kind": "ClusterIssuer"'),
    "operator.logLevel": ("debug", '"value": "debug"'),
    "operator.sweepSeconds": (3, '"DLQ_SWEEP_SECONDS", "value": "3"'),
    "operator.resources": ({"limits": {"memory": "3Gi"}}, '"memory": "3Gi"'),
    "operator.extraEnv": ([{"name": "DLQ_API_RATE", "value": "5"}], "DLQ_API_RATE"),
    "operator.extraVolumes": ([{"name": "extra", "emptyDir": {}}], '"name": "extra"'),
    "operator.extraVolumeMounts": ([{"name": "extra", "mountPath": "/extra"}], "/extra"),
    "operator.podAnnotations": ({"example.com/scrape": "yes"}, "example.com/scrape"),
    "operator.podLabels": ({"example.com/team": "a"}, "example.com/team"),
    "operator.nodeSelector": ({"disk": "ssd"}, '"nodeSelector": {"disk": "ssd"}'),
    "operator.tolerations": (TOLERATION, '"tolerations": [{"key": "dedicated"'),
    "operator.affinity": (AFFINITY, "nodeAffinity"),
    "operator.topologySpreadConstraints": (SPREAD, "topologySpreadConstraints"),
    "operator.priorityClassName": ("high", '"priorityClassName": "high"'),
    "serviceAccount.create": (False, '-"kind": "ServiceAccount", "metadata"'),
    "serviceAccount.name": ("robot", '"serviceAccountName": "robot"'),
    "serviceAccount.annotations": ({"cloud.example/role": "dlq"}, "cloud.example/role"),
    "rbac.create": (False, '-"kind": "ClusterRoleBinding"'),
    "rbac.aggregate": (False, "-aggregate-to-view"),
    "workers.networkPolicy": (True, '"DLQ_WORKER_NETWORK_POLICY", "value": "true"'),
    "workers.podMonitor": (True, '"DLQ_WORKER_POD_MONITOR", "value": "true"'),
    "networkPolicy.enabled": (True, '"kind": "NetworkPolicy"'),
    "podDisruptionBudget.enabled": (True, '"kind": "PodDisruptionBudget"'),
    "podDisruptionBudget.maxUnavailable": (0, '"maxUnavailable": 0'),
    "monitoring.serviceMonitor.enabled": (True, '"kind": "ServiceMonitor"'),
    "monitoring.serviceMonitor.interval": ("7s", '"interval": "7s"'),
    "monitoring.serviceMonitor.labels": ({"prometheus": "main"}, '"prometheus": "main"'),
    "monitoring.prometheusRule.enabled": (True, '"kind": "PrometheusRule"'),
    "monitoring.prometheusRule.labels": ({"rules": "main"}, '"rules": "main"'),
    "monitoring.prometheusRule.runbookURL": ("https://runbooks.example", "https://runbooks.example#dlqgrowing"),
    "monitoring.dashboard.enabled": (True, "dlq-operator.json"),
    "monitoring.dashboard.labels": ({"boards": "1"}, '"boards": "1"'),
}


def render_text(values: dict[str, Any]) -> str:
    """Return all manifests rendered with these values as one text, without Secrets, whose certificates differ."""
    return _render_text(*_arguments(values))


def _arguments(values: dict[str, Any]) -> list[str]:
    return [word for path, value in values.items() for word in ("--set-json", f"{path}={json.dumps(value)}")]


@cache
def _render_text(*arguments: str) -> str:
    return json.dumps([made for made in render(*arguments) if made["kind"] != "Secret"])


def required_values(path: str) -> dict[str, Any]:
    """Return the values that must be set for this one to have an effect."""
    return {
        name: value for part, on in REQUIRED_VALUES.items() if path.startswith(f"{part}.") for name, value in on.items()
    }


def test_every_value_has_a_case() -> None:
    assert {path for path, _, _ in chart_readme.read_values()} == set(CASES)


@pytest.mark.parametrize("path", CASES)
def test_a_value_changes_the_manifests(path: str) -> None:
    value, text = CASES[path]
    default = {name: on for name, on in required_values(path).items() if name != path}
    without, with_it = render_text(default), render_text({**default, path: value})
    shown, hidden = (without, with_it) if text.startswith("-") else (with_it, without)
    assert text.removeprefix("-") in shown
    assert text.removeprefix("-") not in hidden


@pytest.mark.parametrize(("path", "node"), [(path, node) for path, node, _ in chart_readme.read_values()])
def test_a_value_of_a_wrong_type_is_refused_and_named(path: str, node: dict[str, Any]) -> None:
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    wrong = next(value for kind, value in (("array", [1]), ("object", {"a": 1})) if kind not in types)
    with pytest.raises(BedError, match=path.rsplit(".", 1)[-1]):
        render(*_arguments({path: wrong}))


def test_the_page_of_values_is_written_from_the_schema() -> None:
    assert chart_readme.render_page() == chart_readme.PAGE.read_text(), "run make crds"
