"""Fixtures that hand out the real parts: each is started once per run, at its first use, and shared by all workers.

kafka       bootstrap address, "host:port"
redis       URL, "redis://host:port/0"
kafka_cluster   a Kafka of three brokers: .bootstrap ("host:port,host:port,host:port"), .kill(id), .start(id),
            .empty_disk(id), .move_leaders(*topics) and more (tests/bed/kafka_cluster.py)
redis_sentinel  a Redis primary with a replica and three Sentinels: .url (of the primary), .sentinels, .kill(server)
            A test has either of these two for itself and may break it: tests on it take turns, whichever worker has
            them, and it is healed after each.
api_server  a control plane without a node: .server (URL), .kubeconfig (Path), .kubectl(*words, stdin=None) -> str
            (raises BedError with what kubectl said)
crds        the same API server, with our CRDs applied and established
namespace   the name of a fresh namespace of `api_server`, one per test, deleted at its end (nobody waits for that)
cluster     a whole cluster of one node, an API server of its own: what api_server has, and .helm(*words) -> str,
            .image (name of our image, loaded), .load(archive), .address (where pods reach the brokers and this process)
cluster_namespace  as `namespace`, in `cluster`, with Pod Security `restricted` enforced

Under `make test` all of it runs in a network namespace at one address, which pods and tests share; with PROVIDER=kind
`cluster` is one of kind, and the rest listens where its pods reach it. Plain `pytest` has no `cluster` and starts the
other parts on loopback. Mark a test that uses `cluster` with `node`.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import beds, caches, control, kafka_cluster, node, places, processes, redis_sentinel

BED = processes.BED_VARIABLE


def pytest_configure(config: pytest.Config) -> None:
    """The controller makes the run's bed, unless `make test` made one; its workers find it by the environment."""
    if BED not in os.environ:
        beds.remove_stale()
        config.stash[_OWN] = bed = beds.create()
        os.environ[BED] = str(bed.directory)


_OWN = pytest.StashKey[beds.Bed]()
_TAKING_TURNS = {"kafka_cluster", "redis_sentinel"}
_TURN_S = 900  # a test's own time and that of the one whose end it waits for
_SERVERS = {"kafka", "redis", "kafka_cluster", "redis_sentinel", "api_server", "crds", "namespace", "cluster"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a real server, and give those that take turns time to wait for theirs."""
    for item in items:
        used = _used_fixtures(item)
        if used & _SERVERS:
            item.add_marker(pytest.mark.server)
        if used & _TAKING_TURNS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TURN_S))


def _used_fixtures(item: pytest.Item) -> set[str]:
    """Names of the item's fixtures, with those that it asks for by a parameter or by its module's BROKER."""
    module = item.getparent(pytest.Module)
    callspec = getattr(item, "callspec", None)
    named = [*(callspec.params.values() if callspec else ()), getattr(module and module.obj, "BROKER", None)]
    return {*getattr(item, "fixturenames", ()), *(name for name in named if isinstance(name, str))}


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, bed: beds.Bed) -> Iterator[None]:
    """Tests on the node take turns, whichever worker has them: there is one node."""
    if request.node.get_closest_marker("node") is None:
        yield
        return
    with places.locked(bed.directory / "locks" / "turn"):
        yield


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The logs of a bed of our own outlive a failed run."""
    bed = session.config.stash.get(_OWN, None)
    if bed is not None and exitstatus == pytest.ExitCode.TESTS_FAILED:
        caches.print_progress(f"logs of the bed: {beds.keep_logs(bed)}")


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


@pytest.fixture(name="kafka_cluster")
def kafka_cluster_(bed: beds.Bed) -> Iterator[kafka_cluster.KafkaCluster]:
    """A real Kafka of three brokers, for this test alone."""
    with places.locked(bed.directory / "locks" / "turn-kafka-cluster"):
        cluster = bed.kafka_cluster()
        yield cluster
        cluster.heal()


@pytest.fixture(name="redis_sentinel")
def redis_sentinel_(bed: beds.Bed) -> Iterator[redis_sentinel.RedisSentinel]:
    """A real Redis with a replica and Sentinels, for this test alone."""
    with places.locked(bed.directory / "locks" / "turn-redis-sentinel"):
        watched = bed.redis_sentinel()
        yield watched
        watched.heal()


@pytest.fixture(scope="session")
def api_server(bed: beds.Bed) -> control.ApiServer:
    """A real API server with its controllers and no node."""
    return bed.api_server()


@pytest.fixture(scope="session")
def crds(api_server: control.ApiServer) -> control.ApiServer:
    """The API server, knowing our kinds."""
    api_server.install_crds()
    return api_server


@pytest.fixture
def namespace(api_server: control.ApiServer) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api_server.kubectl("create", "namespace", name)
    yield name
    api_server.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def cluster(bed: beds.Bed) -> node.Cluster:
    """A real cluster whose node runs pods."""
    return bed.cluster()


@pytest.fixture
def cluster_namespace(cluster: node.Cluster) -> Iterator[str]:
    """A namespace of the test's own, where every pod must be a restricted one."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
