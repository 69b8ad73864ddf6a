"""Programs built from pinned Go modules, kept in the cache by version."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.bed import caches, places, tools
from tests.bed.processes import BedError

GO = places.HERE / "go"


@dataclass(frozen=True)
class Binary:
    """One program: the folder whose go.mod pins it, its package, and how long a cold build takes."""

    folder: str
    module: str
    package: str
    estimate: str


def _kubernetes(name: str, estimate: str) -> Binary:
    return Binary("kubernetes", "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", estimate)


BINARIES = {
    "kube-apiserver": _kubernetes("kube-apiserver", "6 min"),
    "etcd": Binary("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "40 s"),
    "kube-controller-manager": _kubernetes("kube-controller-manager", "2 min"),
    "kubectl": _kubernetes("kubectl", "20 s"),
    "kube-scheduler": _kubernetes("kube-scheduler", "20 s"),
    "kubelet": _kubernetes("kubelet", "30 s"),
    "kube-proxy": _kubernetes("kube-proxy", "15 s"),
    "coredns": Binary("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns", "4 min"),
    "helm": Binary("helm", "helm.sh/helm/v4", "helm.sh/helm/v4/cmd/helm", "3 min"),
    "kind": Binary("kind", "sigs.k8s.io/kind", "sigs.k8s.io/kind", "10 s"),
}
CONTROL = ("kube-apiserver", "etcd", "kube-controller-manager", "kubectl")
NODE = ("kube-scheduler", "kubelet", "kube-proxy", "coredns", "helm")


def version(name: str) -> str:
    """Return the version that its go.mod pins."""
    binary = BINARIES[name]
    text = (GO / binary.folder / "go.mod").read_text()
    return re.findall(rf"^(?:require )?\s*{re.escape(binary.module)} v(\S+)", text, re.MULTILINE)[0]


def path(name: str) -> Path:
    """Return the path of the program, after building it if the cache does not have it."""
    entry = places.cache() / "bin" / f"{name}-{version(name)}"
    what = f"{name} {version(name)} from Go modules"
    return caches.get_or_make(entry, what, BINARIES[name].estimate, lambda aside: _build(name, aside)) / name


def _build(name: str, aside: Path) -> None:
    need_go()
    binary = BINARIES[name]
    flags = f"-s -w {_stamps(version(name))}" if binary.folder == "kubernetes" else "-s -w"
    command = [tools.path("go"), "build", "-trimpath", "-ldflags", flags, "-o", aside / name, binary.package]
    tools.run(command, cwd=GO / binary.folder, env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"})


def _stamps(number: str) -> str:
    major, minor, _ = number.split(".", 2)
    stamped = {"gitVersion": f"v{number}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamped.items())


def need_go() -> None:
    """Require a Go that can download the toolchain of our modules: Go 1.21 or newer."""
    tools.need("go")
    found = tools.run([tools.path("go"), "env", "GOVERSION"], cwd="/")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < (1, 21):
        raise BedError(f"{found.strip()} is too old for the bed; install Go 1.21 or newer (backports or go.dev/dl).")
