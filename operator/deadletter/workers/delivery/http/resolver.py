"""Resolve host names, and let the address guard check every address before a byte is sent to it.

The client connects to the address that was checked and does not resolve the name again, so a DNS answer that changes
between check and use (DNS rebinding) has no effect. One forbidden address among several forbids the name.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address

from deadletter.net.address_guard import is_dialable, is_in_networks, parse_address
from deadletter.workers.delivery.http.errors import TargetForbidden, TargetUnresolvable

RESOLVE_TIMEOUT_S = 5.0
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host name in the order of the system resolver."""
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetUnresolvable("the host name of the target cannot be resolved") from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_permitted(address: str, allow: Sequence[str]) -> bool:
    """True if the address may be dialled. The API server's is refused too, however it is written, unless `allow`ed."""
    try:
        ip = parse_address(address)
        if not is_dialable(address, allow):
            return False
    except ValueError:  # not an IP address
        return False
    return ip != _api_server() or is_in_networks(ip, allow)


def _api_server() -> IPv4Address | IPv6Address | None:
    try:
        return parse_address(os.environ.get("KUBERNETES_SERVICE_HOST", "").strip("[]"))
    except ValueError:  # not in a cluster, or set to a host name
        return None


class GuardedResolver:
    """Resolves a host name and returns its addresses only if all of them are permitted."""

    def __init__(self, allow: Sequence[str] = (), resolver: Resolver = resolve_host) -> None:
        self._allow = tuple(allow)
        self._resolver = resolver

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the checked addresses of the host; raises TargetForbidden or TargetUnresolvable."""
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                addresses = await self._resolver(host, port)
        except TimeoutError as error:
            raise TargetUnresolvable("the DNS resolver does not answer") from error
        if not addresses:
            raise TargetUnresolvable("the host name of the target has no address")
        for address in addresses:
            if not is_permitted(address, self._allow):
                raise TargetForbidden("the address of the target is not allowed")
        return addresses
