"""Measure the size of the image and how fast a container of it starts. Starts a node of its own, so it needs root."""

import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.request
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench import lines
from tests.bed import beds, node, processes, tools
from tests.bed.node import Cluster

RUNS = 5
TIMEOUT_S = 60.0
PORT = 18080
MEBIBYTE = 2**20


def sizes(archive: Path) -> tuple[int, int]:
    """Return the bytes of all layers, unpacked and compressed as a registry serves them."""
    with tarfile.open(archive) as file:
        (manifest,) = json.load(file.extractfile("manifest.json"))
        layers = [file.extractfile(name).read() for name in manifest["Layers"]]
    return sum(map(len, layers)), sum(len(zlib.compress(layer, 6)) for layer in layers)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def container_command(cluster: Cluster, name: str, *arguments: str) -> list[str]:
    """Return the command that runs a container in the network of the test bed, as the kubelet's runtime would."""
    config = cluster.bed / "bench-kubeconfig"
    config.write_text(cluster.kubectl("config", "view", "--raw", "--flatten"))
    config.chmod(0o644)
    mount = f"type=bind,src={config},dst=/kubeconfig,options=rbind:ro"
    variables = {"KUBECONFIG": "/kubeconfig", "DLQ_HEALTH_PORT": str(PORT), "DLQ_IMAGE": cluster.image}
    environment = [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
    ctr = [tools.path("ctr"), "-a", str(node.socket(cluster.bed)), "-n", "k8s.io"]
    return [*ctr, "run", "--rm", "--net-host", "--mount", mount, *environment, cluster.image, name, *arguments]


def until_ready(cluster: Cluster) -> float:
    """Return the seconds from the command until the operator is ready."""
    name = f"bench-{uuid.uuid4().hex[:6]}"
    begun = time.monotonic()
    running = subprocess.Popen(
        container_command(cluster, name, "python", "-m", "deadletter", "operator"), stdout=sys.stderr
    )
    try:
        while not answers(f"http://127.0.0.1:{PORT}/readyz"):
            if time.monotonic() > begun + TIMEOUT_S:
                raise TimeoutError("the operator is not ready")
            time.sleep(0.01)
        return time.monotonic() - begun
    finally:
        node.ctr(cluster.bed, "tasks", "kill", "--signal", "SIGKILL", name)
        running.wait(60)


def until_loaded(cluster: Cluster, module: str) -> float:
    """Return the seconds of a container that imports a worker and exits."""
    begun = time.monotonic()
    command = container_command(cluster, f"bench-{uuid.uuid4().hex[:6]}", "python", "-c", f"import {module}")
    subprocess.run(command, check=True, stdout=sys.stderr)
    return time.monotonic() - begun


def median_of_runs(work: Callable[[], float]) -> float:
    """Return the median of several runs, after a first one that fills the page cache."""
    work()
    return median(work() for _ in range(RUNS))


def measure(bed: beds.Bed) -> None:
    cluster = bed.cluster()
    cluster.install_crds()
    lines.bound("image-start-operator", "s", median_of_runs(lambda: until_ready(cluster)), 2)
    for name, role in (("courier", "courier"), ("replayer", "replay")):
        module = f"deadletter.workers.{role}.main"
        lines.bound(f"image-start-{name}", "s", median_of_runs(lambda module=module: until_loaded(cluster, module)), 2)
    unpacked, pulled = sizes(bed.directory / "image.tar")
    lines.bound("image-size", "MiB", unpacked / MEBIBYTE, 350)
    lines.bound("image-pulled", "MiB", pulled / MEBIBYTE, 120)


def main() -> int:
    used = os.environ.get(processes.BED_VARIABLE)
    if used is None:
        command = [sys.executable, "-m", "tests.bed", "run", "--", sys.executable, "-m", "bench.image"]
        return subprocess.run(command, check=False).returncode
    measure(beds.Bed(Path(used)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
