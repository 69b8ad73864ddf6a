"""Find and remove what a node leaves on the machine outside the directory of its bed."""

from pathlib import Path

from tests.bed import cgroups, kernel, network, tools

_SHARED = (
    "/var/log/containers",
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/run/containerd/s",
    "/run/containerd",
)


def describe(bed: Path) -> list[str]:
    """Return descriptions of what exists of a bed besides its processes."""
    mounted = mounts(bed)
    found = [f"{len(mounted)} mounts below {bed}"] if mounted else []
    if cgroups.exists(network.name(bed)):
        found.append(f"cgroup {network.name(bed)}")
    if network.exists(bed):
        found.append(f"network namespace {network.name(bed)}")
    return found


def mounts(bed: Path) -> list[str]:
    """Return the mount points below the bed, deepest first."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((place for place in places if place.startswith(f"{bed}/")), reverse=True)


def remove(bed: Path) -> None:
    """Remove everything but the network, and kill the processes of pods; the bed's own processes have ended."""
    cgroups.destroy(network.name(bed))
    _remove_sockets(bed)
    for place in mounts(bed):
        tools.run([tools.path("umount"), "-l", place])
    _remove_links(bed)
    _remove_results(bed)


def remove_shared() -> None:
    """Restore kernel settings and remove empty directories of containerd and kubelet, after the last node."""
    kernel.restore()
    # If the machine runs a kubelet itself, there is more than this folder, and its socket must stay.
    if [path.name for path in Path("/var/lib/kubelet").glob("*")] == ["device-plugins"]:
        Path("/var/lib/kubelet/device-plugins/kubelet.sock").unlink(missing_ok=True)
    for path in _SHARED:
        try:
            Path(path).rmdir()
        except OSError:
            continue


def _remove_sockets(bed: Path) -> None:
    # The sockets of container shims are outside the bed; files inside it contain their addresses.
    for file in (bed / "node" / "state").glob("io.containerd.runtime.v2.task/*/*/address"):
        Path(file.read_text().removeprefix("unix://")).unlink(missing_ok=True)


def _remove_results(bed: Path) -> None:
    results = Path("/var/lib/cni/results")
    for path in results.glob(f"{network.name(bed)}-*-eth0"):
        sandbox = path.name.removeprefix(f"{network.name(bed)}-").removesuffix("-eth0")
        for one in results.glob(f"*-{sandbox}-*"):
            one.unlink(missing_ok=True)


def _remove_links(bed: Path) -> None:
    for link in Path("/var/log/containers").glob("*"):
        if link.is_symlink() and link.readlink().is_relative_to(bed):
            link.unlink(missing_ok=True)


def find_strays(known: set[str]) -> list[str]:
    """Return network namespaces and cgroups that are named like a bed but belong to none."""
    found = [f"network namespace {path.name}" for path in Path("/run/netns").glob("dlq-*") if path.name not in known]
    for hierarchy in cgroups.hierarchies():
        found += [f"cgroup {path}" for path in hierarchy.glob("dlq-*") if path.name not in known]
    return found
