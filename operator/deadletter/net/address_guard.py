"""Decide which IP addresses may be dialled.

The pod itself, link-local addresses and the metadata services of clouds are refused unless a setting allows them.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

METADATA_NETWORKS = tuple(
    map(ip_network, ("169.254.0.0/16", "100.100.100.200/32", "fd00:ec2::/32", "fe80::/10")),
)


def is_dialable(address: str, allow: Sequence[str] = ()) -> bool:
    """True if this IP address may be dialled; a network of `allow` overrides every other rule."""
    ip = parse_address(address)
    if is_in_networks(ip, allow):
        return True
    is_reserved = ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved
    return not (is_reserved or any(ip in network for network in METADATA_NETWORKS))


def is_in_networks(ip: IPv4Address | IPv6Address, networks: Sequence[str]) -> bool:
    """True if one of the networks contains the address."""
    return any(ip in ip_network(network, strict=False) for network in networks)


def parse_address(address: str) -> IPv4Address | IPv6Address:
    """Parse an IP address without its zone and unwrap IPv4 inside IPv6; ValueError if it is not an address."""
    ip = ip_address(address.split("%", 1)[0])
    if isinstance(ip, IPv6Address):
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip
