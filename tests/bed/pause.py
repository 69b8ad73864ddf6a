"""The sandbox image of the node: one static program."""

import os
import tarfile
from pathlib import Path

from tests.bed import archives, binaries, caches, places, tools

NAME = "deadletter.dev/bed-pause:1"


def archive() -> Path:
    """Return the archive of the image, built once."""
    return caches.get_or_make(places.cache() / "images" / "pause-1", "the pause image", "5 s", _make) / "image.tar"


def _make(aside: Path) -> None:
    binaries.need_go()
    program, layer = aside / "pause", aside / "layer.tar"
    command = [tools.path("go"), "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "."]
    tools.run(command, cwd=binaries.GO / "pause", env={**os.environ, "CGO_ENABLED": "0"})
    with tarfile.open(layer, "w") as file:
        archives.add(file, "pause", program.read_bytes(), 0o755)
    archives.write(aside / "image.tar", NAME, layer, {"Entrypoint": ["/pause"]})
    program.unlink()
    layer.unlink()
