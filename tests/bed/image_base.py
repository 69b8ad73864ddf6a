"""A replacement for the public base image, made from Debian packages, and the host settings that a build uses.

It has the same commands as the official image, at other paths, which makes no difference to our Dockerfile.
"""

import configparser
import hashlib
import re
import sys
from pathlib import Path

from tests.bed import archives, caches, places, tools

PACKAGES = ("python3", "python3-venv", "python-is-python3", "ca-certificates")
NAME = "localhost/python:3.11-slim-bookworm"
_SOURCES = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/debian.sources",
    "/etc/apt/sources.list.d/ubuntu.sources",
)
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


def fingerprint() -> str:
    """Return a hash of what the base image is made of."""
    return hashlib.sha256(f"{_suite()} {PACKAGES}".encode()).hexdigest()[:16]


def buildah() -> list[str]:
    """Return the command of buildah with a storage of its own, so that images of the machine do not change."""
    home = places.cache() / "buildah"
    home.mkdir(parents=True, exist_ok=True)
    return [tools.path("buildah"), "--root", str(home / "storage"), "--runroot", str(home / "run")]


def load(buildah: list[str]) -> None:
    """Load the base image into buildah under the name that the Dockerfile uses."""
    base = caches.get_or_make(
        places.cache() / "images" / f"base-{fingerprint()}", "a base image from Debian", "60 s", _make
    )
    if NAME not in tools.run([*buildah, "images", "--format", "{{.Name}}:{{.Tag}}"]):
        tools.run([*buildah, "pull", f"docker-archive:{base}/image.tar"], env=tools.environment())


def _make(aside: Path) -> None:
    layer = aside / "layer.tar"
    tools.run(
        ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}",
         "--dpkgopt=path-exclude=/usr/share/man/*",
         "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
         _suite(), layer, *_mirrors()],
        env=tools.environment(),
    )  # fmt: skip
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    archives.write(aside / "image.tar", NAME, layer, {"Env": [path], "Cmd": ["python3"]})
    layer.unlink()


def _suite() -> str:
    return re.findall(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE)[0]


def _mirrors() -> list[str]:
    """Return the package sources of the distribution, without those of third parties."""
    return [place for place in _SOURCES if Path(place).is_file() and Path(place).read_text().strip()]


def pip_mounts() -> list[str]:
    """Return mounts of the host's pip settings and certificate authorities; they are not part of the image."""
    config = places.cache() / "buildah" / "pip.conf"
    settings = _pip_settings()
    parser = configparser.RawConfigParser()
    parser["global"] = settings
    with config.open("w") as file:
        parser.write(file)
    folders = [word for word in settings.get("find-links", "").split() if Path(word).is_dir()]
    files = [_AUTHORITIES] if Path(_AUTHORITIES).is_file() else []
    return [f"{config}:/etc/pip.conf:ro"] + [f"{path}:{path}:ro" for path in (*folders, *files)]


def _pip_settings() -> dict[str, str]:
    lines = tools.run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    found = re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", "\n".join(lines), re.MULTILINE)
    settings = {key: value.replace("\\n", "\n") for key, value in found}
    if Path(_AUTHORITIES).is_file():
        settings["cert"] = _AUTHORITIES
    return settings
