"""What `make demo` tells is what happens, on both brokers."""

import io
from pathlib import Path

import pytest

from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.controller.watches import watching
from tests.demo import story
from tests.demo.stage import Stage
from tests.docs import transcripts

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

# What `kubectl get dlq -w` says of READY and REASON, without a log being opened.
WATCHED = (
    ("True",),  # the shop takes orders
    ("True", "DepthHigh"),  # some are refused for good
    ("True", "CircuitOpen"),  # the shop is away, and nothing is drained
    ("True", "DepthHigh"),  # the shop is back
    ("True",),  # the letters went back
)


@pytest.mark.parametrize("broker", ["kafka", "redis"])
def test_letters_go_back_once_the_cause_is_mended(broker: str, cluster: Cluster, bed: Bed, tmp_path: Path) -> None:
    story.install(cluster)
    said = io.StringIO()
    stage = Stage(cluster, f"story-{broker}", out=said)
    story.namespaces(cluster, stage.namespace)
    try:
        with watching(cluster, stage.namespace, tmp_path / "watch") as transcript:
            story.Story(stage, broker, bed.kafka() if broker == "kafka" else bed.redis()).tell()
            transcript.tells(*WATCHED)
        if broker == "kafka":
            transcripts.assert_matches_readme(said.getvalue(), stage.namespace)
    except Exception:
        print(stage.show("get", "deadletters,pods,jobs", "-o", "wide"))
        print(cluster.kubectl("-n", story.SYSTEM, "logs", "deploy/dlq-dlq-operator", "--tail=60"))
        raise
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")
