"""Run 100,000 messages and 100,000 replayed letters through each fault of a three-broker Kafka and count them.

One line for each fault: how many arrived and were neither lost nor duplicated. The faults and the accounting are
those of `tests/workers/cluster_faults.py`.

python -m bench.faults [--short] [FAULT ...]
"""

import argparse
import asyncio
import os
import signal
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bench.lines import line, progress
from tests.bed import beds
from tests.bed.kafka_cluster import KafkaCluster
from tests.workers import cluster_faults
from tests.workers.cluster_work import FULL, SHORT, Size


def run(name: str, cluster: KafkaCluster, size: Size) -> bool:
    """Run one fault and print its line."""
    progress(f"{name}: {size.messages} messages and as many letters")
    with tempfile.TemporaryDirectory() as folder:
        account = asyncio.run(cluster_faults.run(name, cluster, Path(folder), size))
    cluster.heal()
    sent = 2 * account.messages
    return line(f"faults-{name}", "messages", sent - account.wrong, "bound", sent, **asdict(account))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Start a cluster that ends with this process, and run the faults on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"only {SHORT.messages} messages")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"any of {', '.join(cluster_faults.FAULTS)}")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    bed = beds.create(f"faults-{os.getpid()}")
    try:
        cluster = bed.kafka_cluster()
        for name in options.faults or cluster_faults.FAULTS:
            run(name, cluster, SHORT if options.short else FULL)
    except BaseException:
        with suppress(OSError):
            progress(f"logs: {beds.keep_logs(bed)}")
        raise
    finally:
        bed.down()


if __name__ == "__main__":
    main()
