"""The other way to a cluster, for machines with Docker: kind.

`bed-up` makes a cluster that stays. A run of the tests has one of its own, beside its bed: brokers and tests stay
processes of this machine and listen where the pods of kind see it, at the gateway of Docker's network `kind`.
"""

import json
import subprocess
from pathlib import Path

import yaml

from tests.bed import binaries, caches, control, image, network, places, preflight, tools
from tests.bed.processes import BedError

NAME = "dlq-operator"
CONFIG = places.HERE / "kind.yaml"


def do(verb: str) -> int:
    """up, down or status of the cluster that stays."""
    preflight.docker()
    match verb:
        case "up":
            if NAME not in clusters():
                create(NAME, image.archive())
            caches.say(f"kubectl --context kind-{NAME} get nodes")
        case "down":
            delete(NAME)
        case "status":
            print(f"{NAME}: up" if NAME in clusters() else "nothing left")
        case _:
            raise BedError(f"{verb} needs no provider; leave PROVIDER=kind out.")
    return 0


def clusters() -> list[str]:
    """What kind runs."""
    return tools.run([binaries.path("kind"), "get", "clusters"]).split()


def create(name: str, archive: Path, *words: str) -> None:
    """A cluster of one node that knows our image."""
    kind = str(binaries.path("kind"))
    making = [kind, "create", "cluster", "--name", name, "--config", str(CONFIG), "--wait", "180s", *words]
    if subprocess.run(making, check=False).returncode:
        raise BedError("kind could not make a cluster; what it said stands above.")
    _load(name, archive)


def load(bed: Path, archive: Path) -> None:
    """Make an image archive known to the node of a bed."""
    _load(network.name(bed), archive)


def _load(name: str, archive: Path) -> None:
    tools.run([binaries.path("kind"), "load", "image-archive", archive, "--name", name], timeout=600)


def delete(name: str) -> None:
    """The cluster goes, with all that runs in it."""
    tools.run([binaries.path("kind"), "delete", "cluster", "--name", name], timeout=600)


def start(bed: Path, archive: Path) -> str:
    """The cluster of a bed; returned is the address by which its pods reach this machine."""
    (bed / "kind").mkdir()
    create(network.name(bed), archive, "--kubeconfig", str(_kubeconfig(bed)))
    return gateway()


def stop(bed: Path) -> None:
    """The cluster of a bed goes, if it has one."""
    if holds(bed):
        delete(network.name(bed))


def holds(bed: Path) -> bool:
    """Whether the bed's cluster is one of kind."""
    return (bed / "kind").is_dir()


def server(bed: Path) -> control.ApiServer:
    """The API server of a bed's cluster."""
    known = yaml.safe_load(_kubeconfig(bed).read_text())
    return control.ApiServer(known["clusters"][0]["cluster"]["server"], _kubeconfig(bed))


def ctr(bed: Path) -> list[str]:
    """Containerd's own client, on the node."""
    return [tools.path("docker"), "exec", f"{network.name(bed)}-control-plane", "ctr"]


def gateway() -> str:
    """This machine's address in the network of kind's nodes."""
    (said,) = json.loads(tools.run([tools.path("docker"), "network", "inspect", "kind"]))
    found = [config.get("Gateway", "") for config in said["IPAM"]["Config"]]
    return next(address for address in found if "." in address)


def _kubeconfig(bed: Path) -> Path:
    return bed / "kind" / "kubeconfig"
