"""Install, upgrade, roll back and uninstall with Helm: queues and couriers stay."""

import json
import uuid
from collections.abc import Iterator

import pytest

from tests import previous
from tests.bed import image
from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.demo import story
from tests.demo.stage import Stage

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

QUEUE = """
apiVersion: deadletter.dev/v1alpha1
kind: BrokerConnection
metadata: {name: broker}
spec: {redis: {url: "%s"}}
---
apiVersion: deadletter.dev/v1alpha1
kind: DeadLetterQueue
metadata: {name: plain}
spec: {brokerRef: {name: broker}, dead: {name: "{%s}.dlq"}}
"""


@pytest.fixture
def stage(cluster: Cluster, bed: Bed) -> Iterator[Stage]:
    """A namespace of its own."""
    stage = Stage(cluster, f"install-{uuid.uuid4().hex[:6]}")
    story.create_namespaces(cluster, stage.namespace)
    yield stage
    cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def apply_queue(stage: Stage, bed: Bed) -> None:
    stage.kubectl("apply", "-f", "-", stdin=QUEUE % (bed.redis(), stage.namespace))


def uninstall(cluster: Cluster, release: str, namespace: str) -> None:
    cluster.helm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", "240s")


def run_commands_of_notes(cluster: Cluster) -> None:
    """Run the three commands that the notes of the chart show."""
    notes = cluster.helm("get", "notes", "dlq", "--namespace", story.SYSTEM)
    commands = [line.split("  #")[0].split() for line in notes.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for program, *arguments in commands:
        assert (cluster.helm if program == "helm" else cluster.kubectl)(*arguments)


def certificate_of(cluster: Cluster) -> str:
    """Return the certificate of the webhook."""
    return cluster.kubectl(
        "-n", story.SYSTEM, "get", "secret", "dlq-dlq-operator-webhook", "-o", r"jsonpath={.data.tls\.crt}"
    )


def is_ready(stage: Stage) -> bool:
    return stage.condition("dlq/plain", "Ready").get("status") == "True"


def test_a_release_is_upgraded_rolled_back_and_removed_and_queues_stay(stage: Stage, bed: Bed) -> None:
    cluster = stage.cluster
    cluster.helm("uninstall", "dlq", "--namespace", story.SYSTEM, "--ignore-not-found", "--wait", "--timeout", "240s")
    story.install_previous(cluster)
    apply_queue(stage, bed)
    stage.until("the queue to be Ready", lambda: is_ready(stage))
    certificate = certificate_of(cluster)
    story.install(cluster)
    assert certificate_of(cluster) == certificate
    assert f"dlq-operator-{image.version()}" in cluster.helm("list", "--namespace", story.SYSTEM)
    assert is_ready(stage)
    run_commands_of_notes(cluster)
    cluster.helm("rollback", "dlq", "--namespace", story.SYSTEM, "--wait", "--timeout", "240s")
    assert f"dlq-operator-{previous.VERSION}" in cluster.helm("list", "--namespace", story.SYSTEM)
    stage.until("the queue to be Ready", lambda: is_ready(stage))
    uninstall(cluster, "dlq", story.SYSTEM)
    assert is_ready(stage)
    assert "deadletterqueues.deadletter.dev" in cluster.kubectl("get", "crds", "-o", "name")


def test_namespaced_mode_works_with_roles_only(stage: Stage, bed: Bed) -> None:
    cluster = stage.cluster
    story.install(cluster)
    uninstall(cluster, "dlq", story.SYSTEM)  # the CRDs stay, as if an administrator had installed them
    story.create_namespaces(cluster, "dlq-one")
    values = f"watchNamespaces={{{stage.namespace}}},crds.enabled=false,rbac.aggregate=false,operator.sweepSeconds=2"
    cluster.helm(
        "upgrade", "--install", "one", str(story.CHART), "--namespace", "dlq-one", "--wait", "--timeout", "240s",
        "--set", values,
    )  # fmt: skip
    try:
        apply_queue(stage, bed)
        stage.until("the queue to be Ready", lambda: is_ready(stage))
        bindings = json.loads(cluster.kubectl("get", "clusterrolebindings", "-o", "json"))["items"]
        subjects = [subject for binding in bindings for subject in binding.get("subjects") or []]
        assert not [subject for subject in subjects if subject.get("namespace") == "dlq-one"]
    finally:
        uninstall(cluster, "one", "dlq-one")


def test_the_webhook_refuses_a_second_owner_of_a_box(stage: Stage, bed: Bed) -> None:
    story.install(stage.cluster)
    apply_queue(stage, bed)
    stage.until("the queue to be Ready", lambda: is_ready(stage))
    second = {
        "apiVersion": "deadletter.dev/v1alpha1",
        "kind": "DeadLetterQueue",
        "metadata": {"name": "other"},
        "spec": {"brokerRef": {"name": "broker"}, "dead": {"name": f"{{{stage.namespace}}}.dlq"}},
    }

    def is_refused() -> bool:
        try:
            stage.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(second))
        except Exception as error:
            return "is already the dead box of" in str(error)
        return False

    # The API server needs a moment to learn the endpoint of the webhook.
    stage.until("the webhook to refuse a second owner", is_refused)
