"""The content of the image and the modules that its roles load."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import places

SBOM = places.REPOSITORY / "operator" / "sbom.py"
SBOM_PATH = "/usr/share/sbom/dlq-operator.cdx.json"
WORKERS = ("deadletter.workers.courier.main", "deadletter.workers.replay.main", "deadletter.workers.redrive.main")


@pytest.mark.parametrize("module", WORKERS)
def test_a_worker_loads_no_kubernetes_client(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'kubernetes', 'kopf'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == ""


def test_the_bill_of_materials_names_every_pinned_library_with_licence_and_hashes(tmp_path: Path) -> None:
    requirements, out = places.REPOSITORY / "requirements.txt", tmp_path / "sbom" / "bill.json"
    subprocess.run([sys.executable, SBOM, requirements, "1.2.3", out], check=True, timeout=120)
    bill = json.loads(out.read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "1.2.3")
    names = {one["name"] for one in bill["components"]}
    assert {"aiokafka", "redis", "kopf", "kubernetes", "pydantic"} <= names
    for one in bill["components"]:
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert one["licenses"], one["name"]
        assert all(hashed["value"].startswith("sha256:") for hashed in one["properties"])
        assert one["properties"], one["name"]


def test_pins_with_markers_and_folded_lines_are_read() -> None:
    pins = runpy.run_path(str(SBOM))["pins"]
    text = (
        f"Some_Name==1.0 ; python_version < '3.12' \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
    )
    assert pins(text) == {("some-name", "1.0"): ["a" * 64, "b" * 64]}


def test_the_image_names_the_path_of_its_bill_of_materials() -> None:
    dockerfile = (places.REPOSITORY / "Dockerfile").read_text()
    assert f'dev.deadletter.sbom="{SBOM_PATH}"' in dockerfile
    assert f"${{VERSION}} {SBOM_PATH}" in dockerfile
    assert "--no-deps --require-hashes" in dockerfile
