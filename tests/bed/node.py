"""The node of a cluster: containerd, kubelet, kube-proxy, CoreDNS and the scheduler."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.bed import binaries, cgroups, control, kernel, kind, network, node_configs, pause, processes, tools
from tests.bed.processes import BedError

PROGRAMS = ("node", "containerd", "kube-scheduler", "kube-proxy", "coredns")
TOOLS = ("containerd", "ctr", "runc", "/usr/lib/cni/bridge", "nft", "ip", "nsenter")


@dataclass(frozen=True)
class Cluster(control.ApiServer):
    """A complete cluster with one node."""

    bed: Path
    address: str
    image: str

    def helm(self, *arguments: str) -> str:
        """Run helm and return its output; raise BedError with its message if it fails."""
        homes = {f"HELM_{kind}_HOME": str(self.bed / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        command = [str(binaries.path("helm")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return tools.run(command, timeout=600, env={**tools.environment(), **homes})

    def load(self, archive: Path) -> None:
        """Load an image archive into the node."""
        if kind.is_used(self.bed):
            kind.load(self.bed, archive)
        else:
            ctr(self.bed, "images", "import", str(archive))


def ctr(bed: Path, *words: str) -> str:
    """Run containerd's client in the namespace of the kubelet."""
    client = kind.ctr(bed) if kind.is_used(bed) else [tools.path("ctr"), "-a", socket(bed)]
    return tools.run([*client, "-n", "k8s.io", *words], timeout=300)


def socket(bed: Path) -> Path:
    """Return the socket of containerd."""
    return bed / "node" / "c.sock"


def start(bed: Path, server: control.ApiServer, scheduler: int) -> None:
    """Start all programs of the node and wait until it can run pods."""
    tools.need(*TOOLS)
    pki = server.kubeconfig.parent
    (bed / "node").mkdir(parents=True, exist_ok=True)
    kernel.save()
    cgroups.create(network.name(bed))
    node_configs.write(bed, pki)
    server.kubectl("apply", "-f", str(bed / "node" / "roles.json"))
    _start_scheduler(bed, pki, scheduler)
    _start_containerd(bed)
    _start_kubelet(bed, pki)
    _start_proxy(bed, pki)
    processes.start("coredns", [binaries.path("coredns"), "-conf", bed / "node" / "Corefile"], bed)
    processes.wait_until("node", lambda: is_ready(server), 180)
    processes.wait_until("CoreDNS", lambda: _answers("http://127.0.0.1:8181/ready"), 120)


def is_ready(server: control.ApiServer) -> bool:
    """True if the node reports that it can run pods."""
    try:
        node = json.loads(server.kubectl("get", "node", "node1", "-o", "json"))
    except BedError:
        return False
    conditions = node["status"].get("conditions", [])
    tainted = node["spec"].get("taints")
    return not tainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _start_scheduler(bed: Path, pki: Path, port: int) -> None:
    flags = control.client_flags(pki / "scheduler.kubeconfig", network.ADDRESS, port)
    processes.start("kube-scheduler", [binaries.path("kube-scheduler"), *control.to_flags(flags)], bed)


def _start_containerd(bed: Path) -> None:
    config = bed / "node" / "containerd.toml"
    made = processes.start("containerd", [tools.path("containerd"), "-c", config], bed, tools.environment())
    processes.wait_until("containerd", lambda: _containerd_answers(bed), 60, made)
    ctr(bed, "images", "import", str(pause.archive()))


def _containerd_answers(bed: Path) -> bool:
    try:
        ctr(bed, "version")
    except BedError:
        return False
    return True


def _start_kubelet(bed: Path, pki: Path) -> None:
    flags = {
        "config": bed / "node" / "kubelet.json",
        "kubeconfig": pki / "node.kubeconfig",
        "hostname-override": "node1",
        "node-ip": network.ADDRESS,
        "root-dir": bed / "node" / "kubelet",
        "cert-dir": bed / "node" / "kubelet" / "pki",
    }
    processes.start("node", [binaries.path("kubelet"), *control.to_flags(flags)], bed, tools.environment())


def _start_proxy(bed: Path, pki: Path) -> None:
    flags = {
        "kubeconfig": pki / "proxy.kubeconfig",
        "proxy-mode": "nftables",
        "hostname-override": "node1",
        "cluster-cidr": network.PODS,
        "conntrack-max-per-core": 0,
        "conntrack-tcp-timeout-established": 0,
        "conntrack-tcp-timeout-close-wait": 0,
    }
    processes.start("kube-proxy", [binaries.path("kube-proxy"), *control.to_flags(flags)], bed, tools.environment())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
