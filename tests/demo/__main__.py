"""`make demo`: start the test bed, install the operator, run the demo. The cluster runs until `make demo-down`."""

import argparse
import os
import subprocess
import sys
import time
import uuid
from contextlib import redirect_stdout

from tests.bed import __main__ as bed_cli
from tests.bed import beds, binaries, network
from tests.bed.processes import BedError
from tests.demo import story
from tests.demo.stage import Stage


def main() -> int:
    """Run one verb; `up` and `picture` start the test bed and then run the others inside its network."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("verb", choices=("up", "picture", "run", "draw"))
    parser.add_argument("--broker", choices=("kafka", "redis"), default="kafka")
    options = parser.parse_args()
    try:
        return {"up": up, "picture": picture, "run": run, "draw": draw}[options.verb](options.broker)
    except (BedError, AssertionError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def up(broker: str) -> int:
    """Start the test bed and run the demo in it."""
    title = "1. A cluster of one real node, a real Kafka and a real Redis, and the operator installed by Helm"
    print(title, flush=True)  # before the output of child processes in the same pipe
    return _run_in_bed("run", broker)


def picture(broker: str) -> int:
    """Draw the README's picture of the dashboard again."""
    return _run_in_bed("draw", broker)


def _run_in_bed(verb: str, broker: str) -> int:
    if code := bed_cli.main(["up"]):
        return code
    bed = beds.Bed(beds.beds_directory() / bed_cli.STANDING_BED)
    command = [sys.executable, "-m", "tests.demo", verb, "--broker", broker]
    return subprocess.run(network.command_inside(bed.directory, command), check=False).returncode


def draw(broker: str) -> int:
    """Run the demo inside the test bed while Prometheus scrapes it, and draw the result."""
    from tests.demo import prometheus
    from tests.demo.picture import ChapterTimes, plot

    cluster = beds.Bed(beds.beds_directory() / bed_cli.STANDING_BED).cluster()
    output = ChapterTimes(sys.stdout)
    with prometheus.scraping(cluster) as series:
        with redirect_stdout(output):
            code = run(broker)
        plot(series, output.chapters, f"shop-{broker}")
    return code


def run(broker: str) -> int:
    """Install the operator, run the chapters, print what to try next."""
    begun = time.monotonic()
    bed = beds.Bed(beds.beds_directory() / bed_cli.STANDING_BED)
    cluster = bed.cluster()
    stage = Stage(cluster, f"shop-{broker}")
    stage.print("    $ helm upgrade --install dlq charts/dlq-operator --namespace dlq-system --wait")
    stage.print("    (here the operator sweeps queues every 2 s instead of every 10, so that the demo is short)")
    story.install(cluster)
    # After an earlier run in this cluster: finished Replays do not run again, and the boxes contain old letters.
    cluster.kubectl("delete", "namespace", stage.namespace, "--ignore-not-found", "--timeout=180s")
    source = f"orders-{uuid.uuid4().hex[:6]}"
    story.Story(stage, broker, bed.kafka() if broker == "kafka" else bed.redis(), source).run()
    stage.print(f"\nFinished in {time.monotonic() - begun:.0f} s. The cluster stays up. Explore it:\n")
    stage.print(f"    {' '.join(network.command_inside(bed.directory, ['bash']))}")
    stage.print(f"    export KUBECONFIG={cluster.kubeconfig} PATH={binaries.path('kubectl').parent}:$PATH")
    stage.print(f"    kubectl -n {stage.namespace} get deadletters")
    stage.print(f"    kubectl -n {stage.namespace} describe dlq orders")
    stage.print("    kubectl explain replay.spec\n\n`make demo-down` removes everything.")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
