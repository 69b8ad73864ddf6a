"""`make demo`: bring up the bed, install the operator, tell the story. The cluster stays up until `make demo-down`."""

import argparse
import os
import subprocess
import sys
import time
import uuid
from contextlib import redirect_stdout

from tests.bed import __main__ as bed_door
from tests.bed import beds, binaries, network
from tests.bed.processes import BedError
from tests.demo import story
from tests.demo.stage import Stage


def main() -> int:
    """Up from outside; told within the bed's own network."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("verb", choices=("up", "picture", "tell", "draw"))
    parser.add_argument("--broker", choices=("kafka", "redis"), default="kafka")
    asked = parser.parse_args()
    try:
        return {"up": up, "picture": picture, "tell": tell, "draw": draw}[asked.verb](asked.broker)
    except (BedError, AssertionError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def up(broker: str) -> int:
    """The bed first: nothing to see before it stands."""
    said = "1. A cluster of one real node, a real Kafka and a real Redis, and the operator installed by Helm"
    print(said, flush=True)  # before what others say in the same pipe
    return _within("tell", broker)


def picture(broker: str) -> int:
    """The README's picture of the dashboard, drawn anew."""
    return _within("draw", broker)


def _within(verb: str, broker: str) -> int:
    if code := bed_door.main(["up"]):
        return code
    bed = beds.Bed(beds.home() / bed_door.STANDING)
    words = [sys.executable, "-m", "tests.demo", verb, "--broker", broker]
    return subprocess.run(network.inside(bed.directory, words), check=False).returncode


def draw(broker: str) -> int:
    """Within the bed: tell the story before a Prometheus, and draw what it saw."""
    from tests.demo import watching
    from tests.demo.picture import Told, plot

    cluster = beds.Bed(beds.home() / bed_door.STANDING).cluster()
    told = Told(sys.stdout)
    with watching.watching(cluster) as seen:
        with redirect_stdout(told):
            code = tell(broker)
        plot(seen, told.chapters, f"shop-{broker}")
    return code


def tell(broker: str) -> int:
    """Install, then the chapters, then what to try next."""
    begun = time.monotonic()
    bed = beds.Bed(beds.home() / bed_door.STANDING)
    cluster = bed.cluster()
    stage = Stage(cluster, f"shop-{broker}")
    stage.say("    $ helm upgrade --install dlq charts/dlq-operator --namespace dlq-system --wait")
    stage.say("    (which here looks at queues every 2 s instead of every 10, so that the story is short)")
    story.install(cluster)
    # Told before in this cluster? Finished Replays never run again, and its boxes hold what became of their letters.
    cluster.kubectl("delete", "namespace", stage.namespace, "--ignore-not-found", "--timeout=180s")
    source = f"orders-{uuid.uuid4().hex[:6]}"
    story.Story(stage, broker, bed.kafka() if broker == "kafka" else bed.redis(), source).tell()
    stage.say(f"\nTold in {time.monotonic() - begun:.0f} s. The cluster stays up; look around:\n")
    stage.say(f"    {' '.join(network.inside(bed.directory, ['bash']))}")
    stage.say(f"    export KUBECONFIG={cluster.kubeconfig} PATH={binaries.path('kubectl').parent}:$PATH")
    stage.say(f"    kubectl -n {stage.namespace} get deadletters")
    stage.say(f"    kubectl -n {stage.namespace} describe dlq orders")
    stage.say("    kubectl explain replay.spec\n\n`make demo-down` takes everything away.")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
