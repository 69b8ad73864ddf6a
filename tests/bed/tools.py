"""Programs of the machine: found, or installed from Debian when they are missing."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.bed import caches
from tests.bed.processes import BedError

PACKAGES = {
    "redis-server": "redis-server",
    "redis-cli": "redis-tools",
    "kcat": "kcat",
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "go": "golang-go",
    "openssl": "openssl",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "nginx": "nginx-light",
    "faketime": "faketime",
    "lua5.1": "lua5.1",
}
_SYSTEM = "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name: str) -> str | None:
    """Where a program lies, also in the places a plain user's PATH leaves out."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")


def environment() -> dict[str, str]:
    """The environment with every place of programs on the PATH, for programs that call others."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM}"}


def path(name: str) -> str:
    """Where a program lies; the caller has asked `need` before."""
    found = find(name)
    if found is None:
        raise BedError(f"{name} is missing; install it: apt-get install {PACKAGES.get(name, name)}")
    return found


def need(*names: str) -> None:
    """Make sure that programs are there; what is missing is installed, which takes root."""
    missing = sorted({PACKAGES[name] for name in names if find(name) is None})
    if missing:
        _install(missing)
        for name in names:
            path(name)


def _install(packages: Sequence[str]) -> None:
    wanted = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BedError(f"{wanted} missing; install with: sudo apt-get install --no-install-recommends {wanted}")
    caches.say(f"installing from Debian: {wanted} (about 30 s)")
    _refresh_index()
    run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], env=_unattended())


@functools.cache
def _refresh_index() -> None:
    run(["apt-get", "update", "-q"], env=_unattended())


def _unattended() -> dict[str, str]:
    # RUNLEVEL keeps Debian from starting the services it installs: the bed starts its own.
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def run(command: Sequence[str | Path], stdin: str | None = None, **more: object) -> str:
    """Run a command to its end; its output, or an error that carries what it said."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-3000:]
        raise BedError(f"{' '.join(words)[:300]} failed ({done.returncode}): {said}")
    return str(done.stdout)
