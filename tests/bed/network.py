"""The network of a bed: a namespace with one bridge, whose address serves node, gateway, API server and DNS."""

from pathlib import Path

from tests.bed import tools

ADDRESS = "10.244.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
BRIDGE = "bed0"
_NAMESPACES = Path("/run/netns")
_ENABLED_SWITCHES = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def name(bed: Path) -> str:
    """Return the name of a bed's network namespace; its cgroup and other resources have the same name."""
    return f"dlq-{bed.name}"


def exists(bed: Path) -> bool:
    """True if the bed has a network of its own."""
    return (_NAMESPACES / name(bed)).exists()


def create(bed: Path) -> None:
    """Create the namespace and its bridge; the network of the host does not change."""
    ip = tools.path("ip")
    tools.run([ip, "netns", "add", name(bed)])
    for arguments in (
        ["link", "set", "lo", "up"],
        ["link", "add", BRIDGE, "type", "bridge"],
        ["addr", "add", f"{ADDRESS}/24", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
        # Programs on the node use Services too: nftables rewrites their addresses only for packets with a route.
        ["route", "add", SERVICES, "dev", BRIDGE],
    ):
        tools.run([ip, "-n", name(bed), *arguments])
    switches = "; ".join(f"[ ! -e /proc/sys/{key} ] || echo 1 > /proc/sys/{key}" for key in _ENABLED_SWITCHES)
    tools.run(command_inside(bed, ["sh", "-c", switches]))


def command_inside(bed: Path, command: list[str]) -> list[str]:
    """Return the command that runs inside the bed's network; `ip netns exec` would mount /sys without cgroups."""
    return [tools.path("nsenter"), f"--net={_NAMESPACES / name(bed)}", *command] if exists(bed) else command


def destroy(bed: Path) -> None:
    """Remove the namespace; bridge, links and rules go with it."""
    if exists(bed):
        tools.run([tools.path("ip"), "netns", "delete", name(bed)])


def is_inside(bed: Path) -> bool:
    """True if this process runs inside the bed's network."""
    return exists(bed) and (_NAMESPACES / name(bed)).stat().st_ino == Path("/proc/self/ns/net").stat().st_ino
