"""Render the chart with Helm, without a cluster."""

import subprocess
from typing import Any

import yaml

from tests.bed import binaries, places
from tests.bed.processes import BedError

CHART = places.REPOSITORY / "charts" / "dlq-operator"
Manifest = dict[str, Any]


def render(*arguments: str) -> list[Manifest]:
    """Return the manifests that helm renders with these arguments."""
    command = [str(binaries.path("helm")), "template", "release", str(CHART), "--namespace", "dlq", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if result.returncode:
        raise BedError(result.stderr)
    return [manifest for manifest in yaml.safe_load_all(result.stdout) if manifest]


def set_values(**values: str) -> list[str]:
    """Return values as helm arguments; two underscores stand for a dot."""
    return [word for path, value in values.items() for word in ("--set", f"{path.replace('__', '.')}={value}")]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Return the objects of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operator_pod(manifests: list[Manifest]) -> Manifest:
    """Return the pod spec of the operator."""
    (deployment,) = of_kind(manifests, "Deployment")
    return dict(deployment["spec"]["template"]["spec"])


def environment(manifests: list[Manifest]) -> dict[str, str]:
    """Return the environment variables of the operator."""
    (container,) = operator_pod(manifests)["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}
