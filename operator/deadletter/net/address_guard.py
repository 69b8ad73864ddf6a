"""Which addresses we may dial: never ourselves, never a cloud's metadata service, unless settings allow it."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
