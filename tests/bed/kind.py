"""A cluster by kind, for machines with Docker.

`bed-up` creates a cluster that keeps running. A run of the tests has a cluster of its own in addition to its bed:
brokers and tests are processes of this machine and listen at the gateway of Docker's network `kind`, where pods can
reach them.
"""

import json
import subprocess
from pathlib import Path

import yaml

from tests.bed import binaries, caches, control, image, network, places, preflight, tools
from tests.bed.processes import BedError

NAME = "dlq-operator"
CONFIG = places.HERE / "kind.yaml"


def run_verb(verb: str) -> int:
    """Start or remove the permanent cluster, or print its status."""
    preflight.require_docker()
    match verb:
        case "up":
            if NAME not in clusters():
                create(NAME, image.archive())
            caches.print_progress(f"kubectl --context kind-{NAME} get nodes")
        case "down":
            delete(NAME)
        case "status":
            print(f"{NAME}: up" if NAME in clusters() else "no cluster exists")
        case _:
            raise BedError(f"{verb} needs no provider. Remove PROVIDER=kind.")
    return 0


def clusters() -> list[str]:
    """Return the names of the clusters of kind."""
    return tools.run([binaries.path("kind"), "get", "clusters"]).split()


def create(name: str, archive: Path, *arguments: str) -> None:
    """Create a cluster of one node that has our image."""
    kind = str(binaries.path("kind"))
    command = [kind, "create", "cluster", "--name", name, "--config", str(CONFIG), "--wait", "180s", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise BedError("kind could not create a cluster; see its output above.")
    _load(name, archive)


def load(bed: Path, archive: Path) -> None:
    """Load an image archive into the node of a bed."""
    _load(network.name(bed), archive)


def _load(name: str, archive: Path) -> None:
    tools.run([binaries.path("kind"), "load", "image-archive", archive, "--name", name], timeout=600)


def delete(name: str) -> None:
    """Delete the cluster."""
    tools.run([binaries.path("kind"), "delete", "cluster", "--name", name], timeout=600)


def start(bed: Path, archive: Path) -> str:
    """Create the cluster of a bed; return the address where its pods reach this machine."""
    (bed / "kind").mkdir()
    create(network.name(bed), archive, "--kubeconfig", str(_kubeconfig(bed)))
    return gateway()


def stop(bed: Path) -> None:
    """Delete the cluster of a bed if it has one."""
    if is_used(bed):
        delete(network.name(bed))


def is_used(bed: Path) -> bool:
    """True if the cluster of the bed was created by kind."""
    return (bed / "kind").is_dir()


def server(bed: Path) -> control.ApiServer:
    """Return the API server of a bed's cluster."""
    config = yaml.safe_load(_kubeconfig(bed).read_text())
    return control.ApiServer(config["clusters"][0]["cluster"]["server"], _kubeconfig(bed))


def ctr(bed: Path) -> list[str]:
    """Return the command of containerd's client on the node."""
    return [tools.path("docker"), "exec", f"{network.name(bed)}-control-plane", "ctr"]


def gateway() -> str:
    """Return the address of this machine in the network of kind's nodes."""
    (inspected,) = json.loads(tools.run([tools.path("docker"), "network", "inspect", "kind"]))
    found = [config.get("Gateway", "") for config in inspected["IPAM"]["Config"]]
    return next(address for address in found if "." in address)


def _kubeconfig(bed: Path) -> Path:
    return bed / "kind" / "kubeconfig"
