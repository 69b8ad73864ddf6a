"""Container images without a registry: one layer and a config, as `docker save` writes them."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"


def write(path: Path, name: str, layer: Path, config: dict[str, Any]) -> None:
    """Write an image archive from a tar of its root filesystem."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    image_config = json.dumps(
        {
            "architecture": MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": _EPOCH,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": _EPOCH}],
        }
    ).encode()
    label = f"{hashlib.sha256(image_config).hexdigest()}.json"
    manifest = json.dumps([{"Config": label, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        add(archive, label, image_config)
        add(archive, "manifest.json", manifest)
        archive.add(layer, "layer.tar")


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add one file to a tar."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))
