"""The image: how large it is, and how soon a container of it answers. Starts a node of its own, so it needs root."""

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
PATIENCE = 60.0
PORT = 18080
MEBIBYTE = 2**20


def sizes(archive: Path) -> tuple[int, int]:
    """Bytes of all layers, unpacked and as a registry would hand them out."""
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


def container(cluster: Cluster, name: str, *words: str) -> list[str]:
    """The command that runs a container in the bed's network, as kubelet's runtime would."""
    config = cluster.bed / "bench-kubeconfig"
    config.write_text(cluster.kubectl("config", "view", "--raw", "--flatten"))
    config.chmod(0o644)
    mount = f"type=bind,src={config},dst=/kubeconfig,options=rbind:ro"
    told = {"KUBECONFIG": "/kubeconfig", "DLQ_HEALTH_PORT": str(PORT), "DLQ_IMAGE": cluster.image}
    environment = [word for key, value in told.items() for word in ("--env", f"{key}={value}")]
    ctr = [tools.path("ctr"), "-a", str(node.socket(cluster.bed)), "-n", "k8s.io"]
    return [*ctr, "run", "--rm", "--net-host", "--mount", mount, *environment, cluster.image, name, *words]


def until_ready(cluster: Cluster) -> float:
    """Seconds from the command to an operator that says it is ready."""
    name = f"bench-{uuid.uuid4().hex[:6]}"
    begun = time.monotonic()
    running = subprocess.Popen(container(cluster, name, "python", "-m", "deadletter", "operator"), stdout=sys.stderr)
    try:
        while not answers(f"http://127.0.0.1:{PORT}/readyz"):
            if time.monotonic() > begun + PATIENCE:
                raise TimeoutError("the operator is not ready")
            time.sleep(0.01)
        return time.monotonic() - begun
    finally:
        node.ctr(cluster.bed, "tasks", "kill", "--signal", "SIGKILL", name)
        running.wait(60)


def until_loaded(cluster: Cluster, module: str) -> float:
    """Seconds from the command to the end of a container that loads all of a worker."""
    begun = time.monotonic()
    words = container(cluster, f"bench-{uuid.uuid4().hex[:6]}", "python", "-c", f"import {module}")
    subprocess.run(words, check=True, stdout=sys.stderr)
    return time.monotonic() - begun


def several(work: Callable[[], float]) -> float:
    """The median, after a first run that fills the page cache."""
    work()
    return median(work() for _ in range(RUNS))


def measure(bed: beds.Bed) -> None:
    cluster = bed.cluster()
    cluster.know_our_kinds()
    lines.bound("image-start-operator", "s", several(lambda: until_ready(cluster)), 2)
    for role in ("courier", "replayer"):
        module = f"deadletter.workers.{role}.main"
        lines.bound(f"image-start-{role}", "s", several(lambda module=module: until_loaded(cluster, module)), 2)
    unpacked, pulled = sizes(bed.directory / "image.tar")
    lines.bound("image-size", "MiB", unpacked / MEBIBYTE, 350)
    lines.bound("image-pulled", "MiB", pulled / MEBIBYTE, 120)


def main() -> int:
    used = os.environ.get(processes.USED)
    if used is None:
        command = [sys.executable, "-m", "tests.bed", "run", "--", sys.executable, "-m", "bench.image"]
        return subprocess.run(command, check=False).returncode
    measure(beds.Bed(Path(used)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
