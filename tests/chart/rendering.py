"""The chart as Helm renders it, without a cluster."""

import subprocess
from typing import Any

import yaml

from tests.bed import binaries, places
from tests.bed.processes import BedError

CHART = places.REPOSITORY / "charts" / "dlq-operator"
Manifest = dict[str, Any]


def render(*words: str) -> list[Manifest]:
    """What helm makes of the chart with these values."""
    command = [str(binaries.path("helm")), "template", "release", str(CHART), "--namespace", "dlq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise BedError(done.stderr)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def sets(**values: str) -> list[str]:
    """Values as words of the command line; two underscores are a dot."""
    return [word for path, value in values.items() for word in ("--set", f"{path.replace('__', '.')}={value}")]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """The objects of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operator(manifests: list[Manifest]) -> Manifest:
    """The operator's pod."""
    (deployment,) = of_kind(manifests, "Deployment")
    return dict(deployment["spec"]["template"]["spec"])


def environment(manifests: list[Manifest]) -> dict[str, str]:
    """What the operator is told."""
    (container,) = operator(manifests)["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}
