"""What is in the image, as CycloneDX: `python sbom.py REQUIREMENTS VERSION OUT`, run by the build in the image's venv.

A component is a pinned requirement that is really installed, with its licence and the hashes that pip was held to.
"""

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pins(text: str) -> dict[tuple[str, str], list[str]]:
    """Name and version of every requirement, with its hashes."""
    found: dict[tuple[str, str], list[str]] = {}
    kept: list[str] = []
    for line in text.splitlines():
        if match := PINNED.match(line):
            kept = found.setdefault((normal(match[1]), match[2]), [])
        kept += HASH.findall(line)
    return found


def normal(name: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(name: str, version: str, hashes: list[str], licence: str) -> dict[str, Any]:
    """One library."""
    said = {"licenses": [{"license": {"name": licence}}]} if licence else {}
    pinned = [{"name": "pip:hash", "value": f"sha256:{one}"} for one in hashes]
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **said,
        "properties": pinned,
    }


def licence(name: str) -> str:
    """What the library says of itself; texts of a whole page are none."""
    about = metadata.metadata(name)
    said = about.get("License-Expression") or about.get("License") or ""
    return said if len(said) < 100 and "\n" not in said else ""


def bill(requirements: str, version: str) -> dict[str, Any]:
    """The whole list, the same at every build of the same pins."""
    installed = {normal(one.name): one.version for one in metadata.distributions()}
    here = {pin: hashes for pin, hashes in pins(requirements).items() if installed.get(pin[0]) == pin[1]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "dlq-operator", "version": version}},
        "components": [component(*pin, hashes, licence(pin[0])) for pin, hashes in sorted(here.items())],
    }


if __name__ == "__main__":
    source, version, target = sys.argv[1:]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(json.dumps(bill(Path(source).read_text(), version), indent=1))
