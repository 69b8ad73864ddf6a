"""Our images, built by buildah from the Dockerfile and cached by a hash of their inputs.

There are two: one of this version, and one of the previous release with the package from its wheel.
"""

import hashlib
import os
import shutil
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests import previous
from tests.bed import caches, image_base, places, tools

TOOLS = ("buildah", "runc", "mmdebstrap")
_MAX_KEPT = 3
_RECIPE = ("Dockerfile", "requirements.txt", "operator/sbom.py")


def version() -> str:
    """Return the version of the project."""
    return str(tomllib.loads((places.REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def name() -> str:
    """Return the name of the image in pods."""
    return _name(version())


def _name(of: str) -> str:
    return f"deadletter.dev/dlq-operator:{of}"


def archive() -> Path:
    """Return the archive of the image for `ctr images import`, built if its inputs have changed."""
    entry = places.cache() / "images" / f"operator-{fingerprint()}"
    return _get_or_build(entry, version(), _copy_inputs)


def previous_archive() -> Path:
    """Return the archive of the previous release's image: its code with this version's Dockerfile and libraries."""
    files = [previous.WHEEL, *(places.REPOSITORY / name for name in _RECIPE)]
    entry = places.cache() / "images" / f"previous-{_hash(previous.VERSION, sorted(files))}"
    return _get_or_build(entry, previous.VERSION, _unpack_previous)


def _get_or_build(entry: Path, of: str, fill: Callable[[Path], None]) -> Path:
    made = caches.get_or_make(
        entry, f"the image {_name(of)}", "30 s, the first time 90 s", lambda aside: _build(aside, of, fill)
    )
    made.touch()
    _remove_old(made.parent, entry.name.split("-")[0])
    return made / "image.tar"


def fingerprint() -> str:
    """Return a hash of all inputs of the image."""
    return _hash(version(), _inputs())


def _hash(of: str, files: list[Path]) -> str:
    found = hashlib.sha256(f"{_name(of)} {os.environ.get('BASE', '')} {image_base.fingerprint()}".encode())
    for path in files:
        found.update(str(path.relative_to(places.REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _inputs() -> list[Path]:
    sources = (places.REPOSITORY / "operator" / "deadletter").rglob("*")
    files = [path for path in sources if path.is_file() and "__pycache__" not in path.parts]
    others = (places.REPOSITORY / name for name in _RECIPE)
    return sorted([*files, *others])


def _build(aside: Path, of: str, fill: Callable[[Path], None]) -> None:
    tools.need(*TOOLS)
    buildah = image_base.buildah()
    public = os.environ.get("BASE")
    base = ["--pull", "--build-arg", f"BASE={public}"] if public else ["--pull-never"]
    if not public:
        image_base.load(buildah)
    mounts = [word for mount in image_base.pip_mounts() for word in ("--volume", mount)]
    context = aside / "context"
    fill(context)
    tools.run(
        [*buildah, "bud", *base, "--layers", "--network", "host", "--isolation", "oci", "--format", "docker", *mounts,
         "--build-arg", f"VERSION={of}", "--iidfile", aside / "id", context],
        env=tools.environment(),
    )  # fmt: skip
    # By its id: another checkout may build an image with the same name at the same time.
    made = (aside / "id").read_text().strip()
    tools.run([*buildah, "push", made, f"docker-archive:{aside}/image.tar:{_name(of)}"], env=tools.environment())
    shutil.rmtree(context)


def _copy_inputs(context: Path) -> None:
    # A copy: the checkout may change during the build, and the hash must match what is built.
    for path in _inputs():
        target = context / path.relative_to(places.REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _unpack_previous(context: Path) -> None:
    for name in _RECIPE:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(places.REPOSITORY / name, context / name)
    with zipfile.ZipFile(previous.WHEEL) as wheel:
        wheel.extractall(context / "operator", [one for one in wheel.namelist() if one.startswith("deadletter/")])


def _remove_old(folder: Path, kind: str) -> None:
    entries = sorted(folder.glob(f"{kind}-*"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[_MAX_KEPT:]:
        shutil.rmtree(entry, ignore_errors=True)
