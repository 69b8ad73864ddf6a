"""What a node leaves on the machine outside the bed's directory, found and removed by the bed's name."""

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


def of(bed: Path) -> list[str]:
    """What is there of a bed beside its processes, in words."""
    mounted = mounts(bed)
    found = [f"{len(mounted)} mounts below {bed}"] if mounted else []
    if cgroups.exists(network.name(bed)):
        found.append(f"cgroup {network.name(bed)}")
    if network.exists(bed):
        found.append(f"network namespace {network.name(bed)}")
    return found


def mounts(bed: Path) -> list[str]:
    """What is mounted below the bed, the deepest first."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((place for place in places if place.startswith(f"{bed}/")), reverse=True)


def remove(bed: Path) -> None:
    """Remove all of it but the network; the bed's processes are gone by now, those of its pods end here."""
    cgroups.destroy(network.name(bed))
    _remove_sockets(bed)
    for place in mounts(bed):
        tools.run([tools.path("umount"), "-l", place])
    _remove_links(bed)
    _remove_results(bed)


def remove_shared() -> None:
    """After the last node: kernel settings back, and the directories that containerd and kubelet made, if empty."""
    kernel.restore()
    # A kubelet of the machine's own has more there than this one folder, and keeps its socket.
    if [path.name for path in Path("/var/lib/kubelet").glob("*")] == ["device-plugins"]:
        Path("/var/lib/kubelet/device-plugins/kubelet.sock").unlink(missing_ok=True)
    for path in _SHARED:
        try:
            Path(path).rmdir()
        except OSError:
            continue


def _remove_sockets(bed: Path) -> None:
    # The shims of containers listen outside the bed, but note where within it.
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


def strays(known: set[str]) -> list[str]:
    """Network namespaces and cgroups that bear a bed's name but belong to no bed."""
    found = [f"network namespace {path.name}" for path in Path("/run/netns").glob("dlq-*") if path.name not in known]
    for hierarchy in cgroups.hierarchies():
        found += [f"cgroup {path}" for path in hierarchy.glob("dlq-*") if path.name not in known]
    return found
