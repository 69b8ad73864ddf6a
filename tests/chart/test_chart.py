"""The chart without a cluster: values are documented and checked, and options appear in the manifests."""

import re
import tomllib

import pytest

from tests.bed import binaries, places, tools
from tests.bed.processes import BedError
from tests.chart.rendering import CHART, environment, of_kind, operator_pod, render, set_values
from tools import chart_readme

pytestmark = pytest.mark.server


def test_helm_lint_passes() -> None:
    tools.run([binaries.path("helm"), "lint", "--strict", CHART], timeout=120)


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((places.REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {project}\nappVersion: {project}\n" in chart
    assert f"## [{project}]" in (places.REPOSITORY / "CHANGELOG.md").read_text()


def test_every_value_is_in_the_schema_with_the_comment_above_it() -> None:
    text = (CHART / "values.yaml").read_text()
    for path, node, _ in chart_readme.read_values():
        name = path.rsplit(".", 1)[-1]
        assert node.get("description"), f"{path} has no description"
        first = node["description"].split(". ")[0][:40]
        assert first in re.sub(r"\n\s*# ", " ", text), (
            f"{path}: the description differs from the comment in values.yaml"
        )
        assert re.search(rf"^\s*{name}:", text, re.MULTILINE), f"{path} is not in values.yaml"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("webhook.missingReferences=Maybe", "missingReferences"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("operator.sweepSeconds=0", "sweepSeconds"),
        ("watchNamspaces={shop}", "watchNamspaces"),
        ("commonLabels.number=1", "commonLabels"),
        ("webhook.certManager.issuerRef.nane=ours", "nane"),
        ("operator.resources.limit.memory=1Gi", "limit"),
        ("watchNamespaces={Shop}", "watchNamespaces"),
        ("allowAddresses={10.1.2.300/32}", "allowAddresses"),
        ("allowAddresses={kafka.infra.svc}", "allowAddresses"),
        ("imagePullSecrets[0].nane=pull", "nane"),
        ("podDisruptionBudget.maxUnavailable=-1", "maxUnavailable"),
        ("podDisruptionBudget.maxUnavailable=many", "maxUnavailable"),
        ("monitoring.serviceMonitor.interval=often", "interval"),
        ("monitoring.prometheusRule.runbookURL=docs", "runbookURL"),
        ("webhook.timeoutSeconds=31", "timeoutSeconds"),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, sentence: str) -> None:
    with pytest.raises(BedError, match=sentence):
        render("--set", value)


def test_the_default_is_one_restricted_operator_with_its_webhook() -> None:
    made = render()
    (deployment,) = of_kind(made, "Deployment")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = operator_pod(made)
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
    made = render("--set", "watchNamespaces={a,b}", *set_values(rbac__aggregate="false", crds__enabled="false"))
    assert {role["metadata"]["namespace"] for role in of_kind(made, "Role")} == {"a", "b"}
    assert not of_kind(made, "ClusterRole")
    assert not of_kind(made, "ClusterRoleBinding")
    assert not of_kind(made, "ValidatingWebhookConfiguration")
    assert environment(made)["DLQ_NAMESPACES"] == "a,b"


def test_secrets_are_unreadable_until_a_tenant_binds_the_role() -> None:
    made = render(*set_values(secrets__readable="false"))
    assert [role["metadata"]["name"] for role in of_kind(made, "ClusterRole") if "secrets" in role["metadata"]["name"]]
    assert not [b for b in of_kind(made, "ClusterRoleBinding") if b["metadata"]["name"].endswith("-secrets")]


@pytest.mark.parametrize("namespaces", [(), ("--set", "watchNamespaces={a,b}")])
def test_the_command_for_tenants_names_existing_objects(namespaces: tuple[str, ...]) -> None:
    made = render(*namespaces, *set_values(secrets__readable="false"))
    role, account = (word.split("=")[1] for word in environment(made)["DLQ_SECRETS_GRANT"].split())
    (rule,) = next(one for one in made if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] == role)[
        "rules"
    ]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])
    (ours,) = of_kind(made, "ServiceAccount")
    assert account == f"dlq:{ours['metadata']['name']}"
    bound = [one for kind in ("RoleBinding", "ClusterRoleBinding") for one in of_kind(made, kind)]
    assert role not in {one["roleRef"]["name"] for one in bound}


def test_crds_are_kept_at_an_uninstall_unless_disabled() -> None:
    kept = of_kind(render(), "CustomResourceDefinition")
    assert len(kept) == 4
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in kept)
    unprotected = of_kind(render(*set_values(crds__keep="false")), "CustomResourceDefinition")
    assert not any("helm.sh/resource-policy" in (crd["metadata"].get("annotations") or {}) for crd in unprotected)
    assert not of_kind(render(*set_values(crds__enabled="false")), "CustomResourceDefinition")


def test_every_variable_is_one_the_operator_reads() -> None:
    from deadletter.settings import Settings

    known = {f"DLQ_{name.upper()}" for name in Settings.model_fields}
    assert set(environment(render())) <= known


def test_cert_manager_makes_the_certificate_and_the_webhook_learns_its_authority() -> None:
    made = render(*set_values(webhook__certManager__enabled="true"))
    (certificate,) = of_kind(made, "Certificate")
    (issuer,) = of_kind(made, "Issuer")
    (webhook,) = of_kind(made, "ValidatingWebhookConfiguration")
    name, secret = issuer["metadata"]["name"], certificate["spec"]["secretName"]
    assert certificate["spec"]["issuerRef"] == {"name": name, "kind": "Issuer"}
    assert certificate["spec"]["dnsNames"] == [f"{name}.dlq.svc"]
    injected = webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"dlq/{certificate['metadata']['name']}"
    assert not any("caBundle" in hook["clientConfig"] for hook in webhook["webhooks"])
    assert not of_kind(made, "Secret")
    assert {"name": "certificates", "secret": {"secretName": secret}} in operator_pod(made)["volumes"]
    theirs = set_values(webhook__certManager__enabled="true", webhook__certManager__issuerRef__name="ours")
    assert not of_kind(render(*theirs), "Issuer")


def test_the_webhook_trusts_the_certificate_of_the_chart() -> None:
    made = render()
    (secret,) = of_kind(made, "Secret")
    (webhook,) = of_kind(made, "ValidatingWebhookConfiguration")
    assert {hook["clientConfig"]["caBundle"] for hook in webhook["webhooks"]} == {secret["data"]["ca.crt"]}


def test_every_pod_of_the_chart_is_restricted_and_scheduled_like_the_operator() -> None:
    placed = ("--set-json", 'operator.tolerations=[{"key": "dedicated", "operator": "Exists"}]')
    made = render(*placed, *set_values(operator__nodeSelector__disk="ssd"))
    pods = [one["spec"]["template"]["spec"] for kind in ("Deployment", "Job") for one in of_kind(made, kind)]
    pods += [pod["spec"] for pod in of_kind(made, "Pod")]
    assert len(pods) == 3
    for pod in pods:
        assert pod["nodeSelector"] == {"disk": "ssd"}
        assert pod["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["resources"]["limits"]["memory"]


def test_common_labels_are_on_every_object() -> None:
    everything = set_values(
        commonLabels__team="platform", networkPolicy__enabled="true", podDisruptionBudget__enabled="true",
        monitoring__serviceMonitor__enabled="true", monitoring__prometheusRule__enabled="true",
        monitoring__dashboard__enabled="true", webhook__certManager__enabled="true",
    )  # fmt: skip
    for manifest in render(*everything):
        assert manifest["metadata"]["labels"]["team"] == "platform", manifest["metadata"]["name"]
    (job,) = of_kind(render(*everything), "Job")
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "platform"
