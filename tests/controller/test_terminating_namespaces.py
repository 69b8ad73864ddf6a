"""A deleted namespace is not blocked by the finalizers of its queues."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as driver
import yaml

from tests.bed.control import ApiServer
from tests.controller.operator_process import (
    KubeNamespace,
    kubeconfig_of_account,
    render_chart,
    running_operator,
    wait_until,
)
from tests.controller.tcp_proxy import TcpProxy


@pytest.fixture(params=["all", "some"])
def manifests(request: pytest.FixtureRequest, namespace: str) -> str:
    """The chart's rights for all namespaces, or for this one by Roles in it; held in a namespace that stays."""
    chosen = (f"watchNamespaces={{{namespace}}}",) if request.param == "some" else ()
    return render_chart(f"home-{uuid.uuid4().hex[:8]}", *chosen)


@pytest.fixture
def home(crds: ApiServer, manifests: str, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with these rights."""
    account = next(one for one in yaml.safe_load_all(manifests) if one and one["kind"] == "ServiceAccount")
    name = account["metadata"]["namespace"]
    crds.kubectl("create", "namespace", name)
    crds.kubectl("apply", "-f", "-", stdin=manifests)
    yield kubeconfig_of_account(crds, manifests, name, tmp_path)
    for one in yaml.safe_load_all(manifests):
        if one and one["kind"].startswith("Cluster"):
            crds.kubectl("delete", one["kind"], one["metadata"]["name"], "--wait=false")
    crds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("reachable", [True, False])
def test_a_namespace_with_a_queue_can_be_deleted_and_created_again(
    kube: KubeNamespace, home: Path, manifests: str, redis: str, tmp_path: Path, reachable: bool
) -> None:
    parts, dead = urlsplit(redis), f"dead-{uuid.uuid4().hex[:8]}"
    proxy = TcpProxy(parts.hostname or "", parts.port or 0).open()
    with running_operator(home, kube.namespace, tmp_path / "operator.log") as operator:
        operator.wait_until_ready()
        kube.redis(f"redis://127.0.0.1:{proxy.port}/0")
        spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}, "deletionPolicy": "Delete"}
        kube.apply("DeadLetterQueue", "orders", spec)
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
        with driver.Redis.from_url(redis) as client:
            client.xadd(dead, {"value": b"x"})
            if not reachable:
                proxy.close()
                kube.wait_for_condition("dlq", "orders", "Ready", "False", "BrokerUnreachable")
            kube.server.kubectl("delete", "namespace", kube.namespace, "--wait=false")
            wait_until("it is gone", lambda: not is_there(kube))
            assert client.exists(dead) == (0 if reachable else 1)
        kube.server.kubectl("create", "namespace", kube.namespace)
        kube.server.kubectl("apply", "-f", "-", stdin=manifests)
        kube.redis(redis)
        # A box that was left on the broker must be taken over explicitly.
        kube.apply("DeadLetterQueue", "orders", spec, annotations={"deadletter.dev/take-over": dead})
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
    proxy.close()


def test_a_deleted_namespace_does_not_delay_the_others(
    crds: ApiServer, kube: KubeNamespace, redis: str, tmp_path: Path
) -> None:
    """The operator watches two namespaces, and its rights in one were deleted with it."""
    gone = f"gone-{uuid.uuid4().hex[:8]}"
    manifests = render_chart(kube.namespace, f"watchNamespaces={{{kube.namespace},{gone}}}")
    kept = [one for one in yaml.safe_load_all(manifests) if one and one["metadata"].get("namespace") != gone]
    crds.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))
    config = kubeconfig_of_account(crds, manifests, kube.namespace, tmp_path)
    with running_operator(config, f"{gone},{kube.namespace}", tmp_path / "operator.log") as operator:
        operator.wait_until_ready()
        kube.redis(redis)
        kube.wait_for_condition("bkc", "broker", "Ready", "True")


def is_there(kube: KubeNamespace) -> bool:
    return bool(kube.server.kubectl("get", "namespace", kube.namespace, "-o", "name", "--ignore-not-found").strip())
