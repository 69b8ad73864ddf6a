"""A real Prometheus that scrapes the operator and its workers during the demo."""

import json
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bed import network, ports, tools
from tests.bed.node import Cluster
from tests.bed.processes import BedError

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: pods
    honor_labels: true
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""
POD_SELECTOR = "app.kubernetes.io/part-of=dlq-operator"


@dataclass(frozen=True)
class Prometheus:
    """The URL of the API, and the time when scraping began."""

    url: str
    begun: float

    def query_range(self, query: str) -> list[dict[str, Any]]:
        """Return every series of a query since the beginning, with one point per second."""
        parameters = {"query": query, "start": self.begun, "end": time.time(), "step": 1}
        with urllib.request.urlopen(
            f"{self.url}/query_range?{urllib.parse.urlencode(parameters)}", timeout=30
        ) as response:
            return list(json.load(response)["data"]["result"])


@contextmanager
def scraping(cluster: Cluster) -> Iterator[Prometheus]:
    """Run Prometheus while the block runs."""
    tools.need("prometheus")
    (port,) = ports.free(network.ADDRESS, 1)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yaml"
        targets = Path(folder) / "targets.json"
        config.write_text(CONFIG.format(targets=targets))
        command = [
            tools.path("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder}/series",
            f"--web.listen-address={network.ADDRESS}:{port}", "--log.level=error",
        ]  # fmt: skip
        stop = threading.Event()
        finder = threading.Thread(target=_discover, args=(cluster, targets, stop), daemon=True)
        finder.start()
        running = subprocess.Popen(command)
        try:
            _wait(f"http://{network.ADDRESS}:{port}/-/ready")
            yield Prometheus(f"http://{network.ADDRESS}:{port}/api/v1", time.time())
        finally:
            stop.set()
            finder.join(60)
            running.terminate()
            running.wait(60)


def _discover(cluster: Cluster, targets: Path, stop: threading.Event) -> None:
    """Write the pods into the target file every second: Debian's Prometheus has no Kubernetes discovery."""
    while not stop.wait(1):
        try:
            pods = json.loads(cluster.kubectl("get", "pods", "-A", "-l", POD_SELECTOR, "-o", "json"))["items"]
        except BedError:
            continue
        aside = targets.with_suffix(".new")
        aside.write_text(json.dumps([{"targets": [address for pod in pods for address in _addresses(pod)]}]))
        aside.rename(targets)


def _addresses(pod: dict[str, Any]) -> list[str]:
    (container, *_) = pod["spec"]["containers"]
    found = [port["containerPort"] for port in container.get("ports", []) if port["name"] in ("metrics", "health")]
    address = pod["status"].get("podIP")
    return [f"{address}:{port}" for port in found if address and pod["status"]["phase"] == "Running"]


def _wait(url: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise BedError("Prometheus does not answer.")
