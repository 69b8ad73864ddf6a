"""The demo runs on both brokers, and the README shows its output."""

import io
from pathlib import Path

import pytest

from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.controller.kubectl_watch import watch_queues
from tests.demo import story
from tests.demo.stage import Stage
from tests.docs import transcripts

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

# READY and REASON as `kubectl get dlq -w` shows them during the demo.
EXPECTED_ROWS = (
    ("True",),  # the shop accepts orders
    ("True", "DepthHigh"),  # some orders are always rejected
    ("True", "CircuitOpen"),  # the shop is down, and no message becomes a letter
    ("True", "DepthHigh"),  # the shop is back
    ("True",),  # all letters were sent back
)


@pytest.mark.parametrize("broker", ["kafka", "redis"])
def test_the_demo_runs_and_the_readme_shows_its_output(broker: str, cluster: Cluster, bed: Bed, tmp_path: Path) -> None:
    story.install(cluster)
    output = io.StringIO()
    stage = Stage(cluster, f"story-{broker}", out=output)
    story.create_namespaces(cluster, stage.namespace)
    try:
        with watch_queues(cluster, stage.namespace, tmp_path / "watch") as transcript:
            story.Story(stage, broker, bed.kafka() if broker == "kafka" else bed.redis()).run()
            transcript.wait_for(*EXPECTED_ROWS)
        if broker == "kafka":
            transcripts.assert_matches_readme(output.getvalue(), stage.namespace)
    except Exception:
        print(stage.show("get", "deadletters,pods,jobs", "-o", "wide"))
        print(cluster.kubectl("-n", story.SYSTEM, "logs", "deploy/dlq-dlq-operator", "--tail=60"))
        raise
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")
