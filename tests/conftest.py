"""Fixtures that hand out the real parts: each is started once per run, at its first use, and shared by all workers.

kafka       bootstrap address, "host:port"
redis       URL, "redis://host:port/0"
api_server  a control plane without a node: .server (URL), .kubeconfig (Path), .kubectl(*words, stdin=None) -> str
            (raises BedError with what kubectl said)
crds        the same API server, with our CRDs applied and established
namespace   the name of a fresh namespace of `api_server`, one per test, deleted at its end (nobody waits for that)
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import beds, control, places

BED = "DLQ_BED"


def pytest_configure(config: pytest.Config) -> None:
    """The controller makes the run's bed, unless `make test` made one; its workers find it by the environment."""
    if BED not in os.environ:
        beds.sweep()
        config.stash[_OWN] = bed = beds.create()
        os.environ[BED] = str(bed.directory)


_OWN = pytest.StashKey[beds.Bed]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controller takes down what it made."""
    bed = config.stash.get(_OWN, None)
    if bed is not None:
        del os.environ[BED]
        bed.down()


@pytest.fixture(scope="session")
def bed() -> beds.Bed:
    """The bed of this run."""
    return beds.Bed(Path(os.environ[BED]))


@pytest.fixture(scope="session")
def kafka(bed: beds.Bed) -> str:
    """The bootstrap address of a real Kafka."""
    return bed.kafka()


@pytest.fixture(scope="session")
def redis(bed: beds.Bed) -> str:
    """The URL of a real Redis."""
    return bed.redis()


@pytest.fixture(scope="session")
def api_server(bed: beds.Bed) -> control.ApiServer:
    """A real API server with its controllers and no node."""
    return bed.api_server()


@pytest.fixture(scope="session")
def crds(api_server: control.ApiServer) -> control.ApiServer:
    """The API server, knowing our kinds."""
    folder = str(places.REPOSITORY / "crds")
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", folder)
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", folder)
    return api_server


@pytest.fixture
def namespace(api_server: control.ApiServer) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api_server.kubectl("create", "namespace", name)
    yield name
    api_server.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
