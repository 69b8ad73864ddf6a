"""A namespace that is deleted goes, whatever its queues still have to do."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as driver
import yaml

from tests.bed.control import ApiServer
from tests.handlers.operators import Place, kubeconfig_of, roles, running, until
from tests.handlers.wires import Wire


@pytest.fixture
def home(crds: ApiServer, tmp_path: Path) -> Iterator[Path]:
    """The chart's cluster-wide rights, held in a namespace that stays."""
    name = f"home-{uuid.uuid4().hex[:8]}"
    crds.kubectl("create", "namespace", name)
    manifests = roles(name)
    crds.kubectl("apply", "-f", "-", stdin=manifests)
    yield kubeconfig_of(crds, manifests, name, tmp_path)
    for one in yaml.safe_load_all(manifests):
        if one and one["kind"].startswith("Cluster"):
            crds.kubectl("delete", one["kind"], one["metadata"]["name"], "--wait=false")
    crds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("reachable", [True, False])
def test_a_namespace_never_hangs(place: Place, home: Path, redis: str, tmp_path: Path, reachable: bool) -> None:
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
    wire.cut()


def is_there(place: Place) -> bool:
    return bool(place.server.kubectl("get", "namespace", place.namespace, "-o", "name", "--ignore-not-found").strip())
