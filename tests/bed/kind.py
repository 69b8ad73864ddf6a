"""The other way to a cluster, for machines with Docker: kind."""

import subprocess

from tests.bed import binaries, caches, image, places, preflight, tools
from tests.bed.processes import BedError

NAME = "dlq-operator"
CONFIG = places.HERE / "kind.yaml"


def do(verb: str) -> int:
    """up, down or status by kind."""
    preflight.docker()
    kind = str(binaries.path("kind"))
    match verb:
        case "up":
            if NAME not in tools.run([kind, "get", "clusters"]).split():
                subprocess.run([kind, "create", "cluster", "--config", str(CONFIG), "--wait", "180s"], check=True)
            subprocess.run([kind, "load", "image-archive", str(image.archive()), "--name", NAME], check=True)
            caches.say(f"kubectl --context kind-{NAME} get nodes")
        case "down":
            subprocess.run([kind, "delete", "cluster", "--name", NAME], check=True)
        case "status":
            clusters = tools.run([kind, "get", "clusters"]).split()
            print(f"{NAME}: up" if NAME in clusters else "nothing left")
        case _:
            raise BedError(f"{verb} needs no provider; leave PROVIDER=kind out.")
    return 0
