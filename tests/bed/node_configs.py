"""Configuration files and RBAC roles of the programs of the node."""

import json
from pathlib import Path
from typing import Any

from tests.bed import network, pause

CONTAINERD = """\
version = 2
root = "{node}/containerd"
state = "{node}/state"
[grpc]
  address = "{node}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  tolerate_missing_hugetlb_controller = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{node}/runc"
"""

COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {pki}/dns.kubeconfig
    pods insecure
    ttl 5
  }}
  ready 127.0.0.1:8181
}}
"""


def write(bed: Path, pki: Path) -> None:
    """Write every file into the node directory of the bed."""
    node = bed / "node"
    (node / "cni").mkdir(parents=True, exist_ok=True)
    (node / "cni" / "10-bed.conflist").write_text(json.dumps(cni(bed)))
    (node / "containerd.toml").write_text(CONTAINERD.format(node=node, pause=pause.NAME))
    (node / "Corefile").write_text(COREFILE.format(address=network.ADDRESS, pki=pki))
    (node / "resolv.conf").write_text(f"nameserver {network.ADDRESS}\n")
    (node / "kubelet.json").write_text(json.dumps(kubelet(bed, pki)))
    (node / "roles.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": roles()}))


def cni(bed: Path) -> dict[str, Any]:
    """Return the CNI configuration: all pods are on the bridge of the bed."""
    ranges = [[{"subnet": network.PODS, "gateway": network.ADDRESS}]]
    addresses = {"type": "host-local", "dataDir": str(bed / "node" / "ipam"), "ranges": ranges}
    bridge = {
        "type": "bridge",
        "bridge": network.BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses | {"routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {"cniVersion": "1.0.0", "name": network.name(bed), "plugins": [bridge]}


def kubelet(bed: Path, pki: Path) -> dict[str, Any]:
    """Return the configuration of the kubelet; all its files are inside the bed."""
    node = bed / "node"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{node}/c.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{network.name(bed)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [network.ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node / "resolv.conf"),
        "podLogsDir": str(node / "podlogs"),
        "volumePluginDir": str(node / "plugins"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "syncFrequency": "10s",
        "makeIPTablesUtilChains": False,
    }


def roles() -> list[dict[str, Any]]:
    """Return the roles of kube-proxy and CoreDNS."""
    rbac = "rbac.authorization.k8s.io"
    reads = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces", "endpoints"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]

    def bound(name: str, role: str, user: str) -> dict[str, Any]:
        return {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": user, "apiGroup": rbac}],
        }

    dns = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "bed-dns"}, "rules": reads}
    return [
        dns,
        bound("bed-dns", "bed-dns", "system:coredns"),
        bound("bed-proxy", "system:node-proxier", "system:kube-proxy"),
    ]
