"""A network of a bed's own: a namespace with one bridge, whose address is node, gateway, API server and DNS."""

from pathlib import Path

from tests.bed import tools

ADDRESS = "10.244.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
BRIDGE = "bed0"
_NAMED = Path("/run/netns")
_ON = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def name(bed: Path) -> str:
    """The name of a bed's network namespace, and the mark of everything else it leaves on the machine."""
    return f"dlq-{bed.name}"


def exists(bed: Path) -> bool:
    """Whether the bed has a network of its own."""
    return (_NAMED / name(bed)).exists()


def create(bed: Path) -> None:
    """Make the namespace and its bridge; nothing of the host's network changes."""
    ip = tools.path("ip")
    tools.run([ip, "netns", "add", name(bed)])
    for words in (
        ["link", "set", "lo", "up"],
        ["link", "add", BRIDGE, "type", "bridge"],
        ["addr", "add", f"{ADDRESS}/24", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
        # Programs on the node reach Services too: a rule rewrites the address, but only of what has a route.
        ["route", "add", SERVICES, "dev", BRIDGE],
    ):
        tools.run([ip, "-n", name(bed), *words])
    switches = "; ".join(f"[ ! -e /proc/sys/{key} ] || echo 1 > /proc/sys/{key}" for key in _ON)
    tools.run(inside(bed, ["sh", "-c", switches]))


def inside(bed: Path, command: list[str]) -> list[str]:
    """The command, run within the bed's network. Not `ip netns exec`: it mounts /sys anew, without cgroups."""
    return [tools.path("nsenter"), f"--net={_NAMED / name(bed)}", *command] if exists(bed) else command


def destroy(bed: Path) -> None:
    """Remove the namespace; bridge, links and rules go with it."""
    if exists(bed):
        tools.run([tools.path("ip"), "netns", "delete", name(bed)])


def is_inside(bed: Path) -> bool:
    """Whether this process runs within the bed's network."""
    return exists(bed) and (_NAMED / name(bed)).stat().st_ino == Path("/proc/self/ns/net").stat().st_ino
