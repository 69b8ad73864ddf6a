"""Programs of the machine: found on the PATH, or installed from Debian if they are missing."""

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
    """Return the path of a program, also from directories that are not on the PATH of users."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")


def environment() -> dict[str, str]:
    """Return the environment with all these directories on the PATH, for programs that call others."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM}"}


def path(name: str) -> str:
    """Return the path of a program that `need` has checked before."""
    found = find(name)
    if found is None:
        raise BedError(f"{name} is missing. Install it: apt-get install {PACKAGES.get(name, name)}")
    return found


def need(*names: str) -> None:
    """Install programs that are missing, which needs root."""
    missing = sorted({PACKAGES[name] for name in names if find(name) is None})
    if missing:
        _install(missing)
        for name in names:
            path(name)


def _install(packages: Sequence[str]) -> None:
    wanted = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BedError(f"{wanted} missing. Install with: sudo apt-get install --no-install-recommends {wanted}")
    caches.print_progress(f"installing from Debian: {wanted} (about 30 s)")
    _refresh_index()
    run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], env=_unattended())


@functools.cache
def _refresh_index() -> None:
    run(["apt-get", "update", "-q"], env=_unattended())


def _unattended() -> dict[str, str]:
    # RUNLEVEL prevents Debian from starting installed services: the bed starts its own.
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def run(command: Sequence[str | Path], stdin: str | None = None, **more: object) -> str:
    """Run a command to its end; return its output, or raise BedError with its error output."""
    arguments = [str(word) for word in command]
    done = subprocess.run(arguments, input=stdin, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-3000:]
        raise BedError(f"{' '.join(arguments)[:300]} failed ({done.returncode}): {output}")
    return str(done.stdout)
