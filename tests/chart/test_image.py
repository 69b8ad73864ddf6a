"""What the image holds and what its roles load."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import places

SBOM = places.REPOSITORY / "operator" / "sbom.py"
PLACE = "/usr/share/sbom/dlq-operator.cdx.json"
WORKERS = ("deadletter.workers.courier.main", "deadletter.workers.replay.main", "deadletter.workers.redrive.main")


@pytest.mark.parametrize("module", WORKERS)
def test_a_worker_loads_no_kubernetes_client(module: str) -> None:
    asked = f"import sys, {module}; print(*sorted({{'kubernetes', 'kopf'}} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.strip() == ""


def test_the_bill_names_every_pinned_library_with_licence_and_hashes(tmp_path: Path) -> None:
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


def test_the_image_says_where_its_bill_is() -> None:
    dockerfile = (places.REPOSITORY / "Dockerfile").read_text()
    assert f'dev.deadletter.sbom="{PLACE}"' in dockerfile
    assert f"${{VERSION}} {PLACE}" in dockerfile
    assert "--no-deps --require-hashes" in dockerfile
