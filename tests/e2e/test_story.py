"""What `make demo` tells is what happens, on both brokers."""

import pytest

from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.demo import story
from tests.demo.stage import Stage

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("broker", ["kafka", "redis"])
def test_letters_go_back_once_the_cause_is_mended(broker: str, cluster: Cluster, bed: Bed) -> None:
    story.install(cluster)
    stage = Stage(cluster, f"story-{broker}")
    try:
        story.Story(stage, broker, bed.kafka() if broker == "kafka" else bed.redis()).tell()
    except Exception:
        print(stage.show("get", "deadletters,pods,jobs", "-o", "wide"))
        print(cluster.kubectl("-n", story.SYSTEM, "logs", "deploy/dlq-dlq-operator", "--tail=60"))
        raise
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")
