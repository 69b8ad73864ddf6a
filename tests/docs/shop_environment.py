"""The environment that the docs assume: a Kafka at kafka.infra.svc:9092 and a Service `billing` in namespace `shop`."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tests.bed import binaries, kafka, places, tools
from tests.bed.beds import Bed, Part
from tests.bed.node import Cluster
from tests.bed.processes import BedError
from tests.demo import story, traffic
from tests.demo.stage import MANIFESTS, Stage

KAFKA = """
apiVersion: v1
kind: Service
metadata: {name: kafka, namespace: infra}
spec: {ports: [{name: kafka, port: 9092}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kafka, namespace: infra, labels: {kubernetes.io/service-name: kafka}}
addressType: IPv4
ports: [{name: kafka, port: %d}]
endpoints: [{addresses: [%s]}]
"""
BILLING = """
apiVersion: v1
kind: Service
metadata: {name: billing}
spec: {selector: {app: shop}, ports: [{port: 8080}]}
"""
BAD = 12


@dataclass
class ShopEnvironment:
    """Namespace `shop` of the cluster, with a Kafka of its own so that names like `orders` are free."""

    cluster: Cluster
    bed: Bed
    folder: Path

    @property
    def stage(self) -> Stage:
        """Return the namespace in which the commands of the docs run."""
        return Stage(self.cluster, "shop")

    @property
    def kafka(self) -> str:
        """Return the real address of that Kafka."""
        part = self.bed.ensure_part(Part("docs-kafka", 2, kafka.start))
        return f"{part['address']}:{part['ports'][0]}"

    def make(self) -> None:
        """Create what a reader has before the first command: brokers, topics and a service, but no operator."""
        self.cluster.helm("uninstall", "dlq", "--namespace", story.SYSTEM, "--ignore-not-found", "--wait")
        story.create_namespaces(self.cluster, "infra", "shop", story.SYSTEM)
        address, port = self.kafka.split(":")
        self.cluster.kubectl("apply", "-f", "-", stdin=KAFKA % (int(port), address))
        for topic in ("orders", "payments-dlt"):
            traffic.send("kafka", self.kafka, topic, [])
        self.serve("EUR")
        self.stage.kubectl("apply", "-f", "-", stdin=BILLING)
        self.folder.joinpath("kubeconfig").write_text(self.cluster.kubeconfig.read_text())
        self.run("kubectl config set-context --current --namespace=shop")

    def incident(self) -> None:
        """Send twelve orders in a currency that the service does not know."""
        traffic.send("kafka", self.kafka, "orders", traffic.orders(BAD, currency="DOGE"))

    def serve(self, currency: str) -> None:
        """Deploy the service so that it accepts euros and this currency."""
        program = (MANIFESTS / "shop.py").read_text().replace('!= "EUR"', f'not in ("EUR", "{currency}")')
        name = f"shop-{currency.lower()}"
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"shop.py": program}}
        self.stage.kubectl("apply", "-f", "-", stdin=json.dumps(made))
        # A new name, because a kubelet may give a new pod the old content of a changed ConfigMap.
        manifest = Template((MANIFESTS / "shop.yaml").read_text()).substitute(IMAGE=self.cluster.image)
        named = manifest.replace("configMap: {name: shop}", f"configMap: {{name: {name}}}")
        self.stage.kubectl("apply", "--server-side", "-f", "-", stdin=named)
        self.stage.kubectl("rollout", "status", "deploy/shop", "--timeout=180s")
        # The old pod responds on its open connections until it is gone.
        pods = ("get", "pods", "-l", "app=shop", "-o", "name")
        self.stage.until("the old service to be gone", lambda: len(self.stage.kubectl(*pods).split()) == 1)

    def run(self, command: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command in a shell in the checkout, and return its output."""
        programs = [str(binaries.path(name).parent) for name in ("kubectl", "helm")]
        homes = {f"HELM_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {
            **tools.environment(), **homes, "KUBECONFIG": str(self.folder / "kubeconfig"), "PYTHONPATH": "operator",
            "PATH": os.pathsep.join([*programs, str(Path(sys.executable).parent), os.environ["PATH"]]),
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=places.REPOSITORY, env=environment, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode not in codes:
            raise BedError(f"{command}\nended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-1000:]}")
        return done.stdout

    def a_letter(self) -> str:
        """Return the id of an open letter of `orders`."""
        listed = self.run(f"kubectl -n dlq-system exec {story.OPERATOR} -- {' '.join(story.LETTERS)} -n shop orders")
        return listed.splitlines()[1].split()[0]

    def end(self) -> None:
        """Delete what was created for the docs."""
        self.cluster.kubectl("delete", "namespace", "shop", "infra", "--wait=false", "--ignore-not-found")
