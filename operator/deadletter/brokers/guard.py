"""Which addresses we may dial: never ourselves, never a cloud's metadata service, unless settings allow it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from deadletter.brokers.errors import AddressForbidden, BrokerUnreachable

FORBIDDEN = (
    "the broker's address is not one that this operator may dial (ourselves, link-local, metadata); "
    "allowAddresses of the chart makes exceptions"
)
METADATA = tuple(map(ip_network, ("169.254.0.0/16", "100.100.100.200/32", "fd00:ec2::/32", "fe80::/10")))


def allowed(address: str, allow: Sequence[str] = ()) -> bool:
    """May we dial this IP address? A network of `allow` that holds it says yes before all else."""
    ip = plain(address)
    if is_listed(ip, allow):
        return True
    forbidden = ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved
    return not (forbidden or any(ip in network for network in METADATA))


def is_listed(ip: IPv4Address | IPv6Address, allow: Sequence[str]) -> bool:
    """Does a network of `allow` hold it?"""
    return any(ip in ip_network(network, strict=False) for network in allow)


def plain(address: str) -> IPv4Address | IPv6Address:
    """The address that is meant: IPv4 where it is written as IPv6, without a zone; ValueError when it is none."""
    ip = ip_address(address.split("%", 1)[0])
    if isinstance(ip, IPv6Address):
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def address_guard(allow: Sequence[str]) -> Callable[[Iterable[str]], Awaitable[None]]:
    """A guard that resolves host names and refuses them when any of their addresses is forbidden."""
    passed: set[str] = set()

    async def check(hosts: Iterable[str]) -> None:
        for host in {host.strip("[]") for host in hosts} - passed:
            for address in await _resolve(host):
                if not allowed(address, allow):
                    # The address itself stays out of the text: it would make a port scanner of us.
                    raise AddressForbidden(FORBIDDEN)
            passed.add(host)

    return check


async def _resolve(host: str) -> set[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachable("the broker's host name cannot be resolved") from error
    return {str(entry[4][0]) for entry in found}
