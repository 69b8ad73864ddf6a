"""The chart without a cluster: every value is documented and known, and every switch shows in what is rendered."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.bed import binaries, places
from tests.bed.processes import BedError

CHART = places.REPOSITORY / "charts" / "dlq-operator"
Manifest = dict[str, Any]


def render(*words: str) -> list[Manifest]:
    """What helm makes of the chart with these values."""
    command = [str(binaries.path("helm")), "template", "release", str(CHART), "--namespace", "dlq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise BedError(done.stderr)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def sets(**values: str) -> list[str]:
    return [word for path, value in values.items() for word in ("--set", f"{path.replace('__', '.')}={value}")]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operator(manifests: list[Manifest]) -> Manifest:
    (deployment,) = of_kind(manifests, "Deployment")
    return deployment["spec"]["template"]["spec"]


def environment(manifests: list[Manifest]) -> dict[str, str]:
    (container,) = operator(manifests)["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def leaves(schema: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    for name, node in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if "properties" in node:
            yield from leaves(node, where)
        elif name != "global":
            yield where, node


def test_every_value_is_in_the_schema_with_the_comment_above_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "values.yaml").read_text()
    for path, node in leaves(schema):
        name = path.rsplit(".", 1)[-1]
        assert node.get("description"), f"{path} has no description"
        first = node["description"].split(". ")[0][:40]
        assert first in re.sub(r"\n\s*# ", " ", text), f"{path}: the schema says what values.yaml does not"
        assert re.search(rf"^\s*{name}:", text, re.MULTILINE), f"{path} is not in values.yaml"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("webhook.missingReferences=Maybe", "missingReferences"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("operator.sweepSeconds=0", "sweepSeconds"),
        ("watchNamspaces={shop}", "watchNamspaces"),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, sentence: str) -> None:
    with pytest.raises(BedError, match=sentence):
        render("--set", value)


def test_by_default_one_restricted_operator_with_its_webhook() -> None:
    made = render()
    (deployment,) = of_kind(made, "Deployment")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = operator(made)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (webhook,) = of_kind(made, "ValidatingWebhookConfiguration")
    assert {hook["failurePolicy"] for hook in webhook["webhooks"]} == {"Ignore"}
    assert len(webhook["webhooks"]) == 4


def test_no_role_has_a_wildcard_and_secrets_are_only_got() -> None:
    for manifest in [*render(), *render("--set", "watchNamespaces={a,b}")]:
        for rule in manifest.get("rules", []):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["get"]


def test_namespaced_mode_needs_roles_only() -> None:
    made = render("--set", "watchNamespaces={a,b}", *sets(rbac__aggregate="false", crds__enabled="false"))
    assert {role["metadata"]["namespace"] for role in of_kind(made, "Role")} == {"a", "b"}
    assert not of_kind(made, "ClusterRole")
    assert not of_kind(made, "ClusterRoleBinding")
    assert not of_kind(made, "ValidatingWebhookConfiguration")
    assert environment(made)["DLQ_NAMESPACES"] == "a,b"


def test_secrets_stay_unbound_until_a_tenant_binds_them() -> None:
    made = render(*sets(secrets__readable="false"))
    assert [role["metadata"]["name"] for role in of_kind(made, "ClusterRole") if "secrets" in role["metadata"]["name"]]
    assert not [b for b in of_kind(made, "ClusterRoleBinding") if b["metadata"]["name"].endswith("-secrets")]


def test_the_kinds_are_kept_at_an_uninstall_unless_asked_otherwise() -> None:
    kept = of_kind(render(), "CustomResourceDefinition")
    assert len(kept) == 4
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in kept)
    loose = of_kind(render(*sets(crds__keep="false")), "CustomResourceDefinition")
    assert not any("helm.sh/resource-policy" in (crd["metadata"].get("annotations") or {}) for crd in loose)
    assert not of_kind(render(*sets(crds__enabled="false")), "CustomResourceDefinition")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"networkPolicy__enabled": "true"}, "NetworkPolicy"),
        ({"podDisruptionBudget__enabled": "true"}, "PodDisruptionBudget"),
        ({"monitoring__serviceMonitor__enabled": "true"}, "ServiceMonitor"),
        ({"monitoring__prometheusRule__enabled": "true"}, "PrometheusRule"),
        ({"monitoring__dashboard__enabled": "true"}, "ConfigMap"),
        ({"webhook__certManager__enabled": "true"}, "Certificate"),
    ],
)
def test_a_switch_adds_its_object(values: dict[str, str], kind: str) -> None:
    assert not of_kind(render(), kind)
    assert of_kind(render(*sets(**values)), kind)


@pytest.mark.parametrize(
    ("values", "name", "wanted"),
    [
        ({"operator__logLevel": "debug"}, "DLQ_LOG_LEVEL", "debug"),
        ({"operator__sweepSeconds": "3"}, "DLQ_SWEEP_SECONDS", "3"),
        ({"allowAddresses": "{127.0.0.0/8}"}, "DLQ_ALLOW_ADDRESSES", "127.0.0.0/8"),
        ({"secrets__requireLabel": "true"}, "DLQ_SECRETS_REQUIRE_LABEL", "true"),
        ({"workers__networkPolicy": "true"}, "DLQ_WORKER_NETWORK_POLICY", "true"),
        ({"workers__podMonitor": "true"}, "DLQ_WORKER_POD_MONITOR", "true"),
        ({"webhook__missingReferences": "Deny"}, "DLQ_WEBHOOK_MISSING_REFERENCES", "Deny"),
        ({"webhook__deleteInUse": "Deny"}, "DLQ_WEBHOOK_DELETE_IN_USE", "Deny"),
        ({"image__tag": "9.9.9"}, "DLQ_IMAGE", "deadletter.dev/dlq-operator:9.9.9"),
        ({"imagePullSecrets[0].name": "pull"}, "DLQ_IMAGE_PULL_SECRETS", "pull"),
    ],
)
def test_a_value_reaches_the_operator(values: dict[str, str], name: str, wanted: str) -> None:
    assert environment(render(*sets(**values)))[name] == wanted


def test_every_variable_is_one_the_operator_reads() -> None:
    from deadletter.settings import Settings

    known = {f"DLQ_{name.upper()}" for name in Settings.model_fields}
    assert set(environment(render())) <= known


def test_the_pod_takes_what_a_cluster_wants_of_it() -> None:
    pod = operator(render(*sets(**{"operator__priorityClassName": "high", "operator__nodeSelector.disk": "ssd"})))
    assert pod["priorityClassName"] == "high"
    assert pod["nodeSelector"] == {"disk": "ssd"}
