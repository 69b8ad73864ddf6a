"""A namespace that is deleted goes, whatever its queues still have to do."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as driver
import yaml

from tests.bed.control import ApiServer
from tests.controller.operators import Place, kubeconfig_of, roles, running, until
from tests.controller.wires import Wire


@pytest.fixture(params=["all", "some"])
def manifests(request: pytest.FixtureRequest, namespace: str) -> str:
    """The chart's rights for all namespaces, or for this one by Roles in it; held in a namespace that stays."""
    chosen = (f"watchNamespaces={{{namespace}}}",) if request.param == "some" else ()
    return roles(f"home-{uuid.uuid4().hex[:8]}", *chosen)


@pytest.fixture
def home(crds: ApiServer, manifests: str, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with these rights."""
    account = next(one for one in yaml.safe_load_all(manifests) if one and one["kind"] == "ServiceAccount")
    name = account["metadata"]["namespace"]
    crds.kubectl("create", "namespace", name)
    crds.kubectl("apply", "-f", "-", stdin=manifests)
    yield kubeconfig_of(crds, manifests, name, tmp_path)
    for one in yaml.safe_load_all(manifests):
        if one and one["kind"].startswith("Cluster"):
            crds.kubectl("delete", one["kind"], one["metadata"]["name"], "--wait=false")
    crds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("reachable", [True, False])
def test_a_namespace_never_hangs_and_may_come_back(
    place: Place, home: Path, manifests: str, redis: str, tmp_path: Path, reachable: bool
) -> None:
    parts, dead = urlsplit(redis), f"dead-{uuid.uuid4().hex[:8]}"
    wire = Wire(parts.hostname or "", parts.port or 0).mend()
    with running(home, place.namespace, tmp_path / "operator.log") as operator:
        operator.until_ready()
        place.redis(f"redis://127.0.0.1:{wire.port}/0")
        spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}, "deletionPolicy": "Delete"}
        place.apply("DeadLetterQueue", "orders", spec)
        place.until_condition("dlq", "orders", "Ready", "True")
        with driver.Redis.from_url(redis) as client:
            client.xadd(dead, {"value": b"x"})
            if not reachable:
                wire.cut()
                place.until_condition("dlq", "orders", "Ready", "False", "BrokerUnreachable")
            place.server.kubectl("delete", "namespace", place.namespace, "--wait=false")
            until("it is gone", lambda: not is_there(place))
            assert client.exists(dead) == (0 if reachable else 1)
        place.server.kubectl("create", "namespace", place.namespace)
        place.server.kubectl("apply", "-f", "-", stdin=manifests)
        place.redis(redis)
        # What a namespace left behind belongs to no queue until it is given to one.
        place.apply("DeadLetterQueue", "orders", spec, annotations={"deadletter.dev/take-over": dead})
        place.until_condition("dlq", "orders", "Ready", "True")
    wire.cut()


def test_a_namespace_that_is_gone_keeps_no_other_waiting(
    crds: ApiServer, place: Place, redis: str, tmp_path: Path
) -> None:
    """The operator was told of two namespaces, and of one its rights are gone with it."""
    gone = f"gone-{uuid.uuid4().hex[:8]}"
    manifests = roles(place.namespace, f"watchNamespaces={{{place.namespace},{gone}}}")
    kept = [one for one in yaml.safe_load_all(manifests) if one and one["metadata"].get("namespace") != gone]
    crds.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))
    config = kubeconfig_of(crds, manifests, place.namespace, tmp_path)
    with running(config, f"{gone},{place.namespace}", tmp_path / "operator.log") as operator:
        operator.until_ready()
        place.redis(redis)
        place.until_condition("bkc", "broker", "Ready", "True")


def is_there(place: Place) -> bool:
    return bool(place.server.kubectl("get", "namespace", place.namespace, "-o", "name", "--ignore-not-found").strip())
