"""Our image: the very Dockerfile, built by buildah, kept by a hash of what goes into it."""

import hashlib
import os
import shutil
import tomllib
from pathlib import Path

from tests.bed import caches, image_base, places, tools

TOOLS = ("buildah", "runc", "mmdebstrap")
_KEPT = 3


def version() -> str:
    """The version of the project."""
    return str(tomllib.loads((places.REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def name() -> str:
    """What pods call it."""
    return f"deadletter.dev/dlq-operator:{version()}"


def archive() -> Path:
    """The image as an archive for `ctr images import`, built if its inputs have changed."""
    entry = places.cache() / "images" / f"operator-{fingerprint()}"
    made = caches.kept(entry, f"the image {name()}", "30 s, the first time 90 s", _build)
    made.touch()
    _forget_old(made.parent)
    return made / "image.tar"


def fingerprint() -> str:
    """A hash of everything that goes into the image."""
    found = hashlib.sha256(f"{name()} {os.environ.get('BASE', '')} {image_base.fingerprint()}".encode())
    for path in _inputs():
        found.update(str(path.relative_to(places.REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _inputs() -> list[Path]:
    sources = (places.REPOSITORY / "operator" / "deadletter").rglob("*")
    files = [path for path in sources if path.is_file() and "__pycache__" not in path.parts]
    others = (places.REPOSITORY / name for name in ("Dockerfile", "requirements.txt", "operator/sbom.py"))
    return sorted([*files, *others])


def _build(aside: Path) -> None:
    tools.need(*TOOLS)
    buildah = image_base.buildah()
    public = os.environ.get("BASE")
    base = ["--pull", "--build-arg", f"BASE={public}"] if public else ["--pull-never"]
    if not public:
        image_base.load(buildah)
    mounts = [word for mount in image_base.pip_mounts() for word in ("--volume", mount)]
    context = aside / "context"
    _copy_inputs(context)
    tools.run(
        [*buildah, "bud", *base, "--layers", "--network", "host", "--isolation", "oci", "--format", "docker", *mounts,
         "--build-arg", f"VERSION={version()}", "--iidfile", aside / "id", context],
        env=tools.environment(),
    )  # fmt: skip
    # By its id: another checkout may be building under the same name at this very moment.
    made = (aside / "id").read_text().strip()
    tools.run([*buildah, "push", made, f"docker-archive:{aside}/image.tar:{name()}"], env=tools.environment())
    shutil.rmtree(context)


def _copy_inputs(context: Path) -> None:
    # A copy: others may write into the checkout while we build, and the hash must stay true.
    for path in _inputs():
        target = context / path.relative_to(places.REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _forget_old(folder: Path) -> None:
    entries = sorted(folder.glob("operator-*"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[_KEPT:]:
        shutil.rmtree(entry, ignore_errors=True)
