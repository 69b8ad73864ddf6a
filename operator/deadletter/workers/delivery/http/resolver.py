"""Names become addresses, and every address passes the guard before a byte is sent to it.

The connection goes to the address that was checked, never to the name again: an answer that changes between check and
use (DNS rebinding) changes nothing. One forbidden address among several forbids the name.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address

from deadletter.net.address_guard import allowed, is_listed, plain
from deadletter.workers.delivery.http.errors import TargetForbidden, TargetUnresolvable

RESOLVE_SECONDS = 5.0
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system's resolver orders them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetUnresolvable("the target's name cannot be resolved") from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_permitted(address: str, allow: Sequence[str]) -> bool:
    """May we connect to it? The API server's address is refused too, however it is written, unless `allow` holds it."""
    try:
        ip = plain(address)
        if not allowed(address, allow):
            return False
    except ValueError:  # what is no address is not dialled
        return False
    return ip != _api_server() or is_listed(ip, allow)


def _api_server() -> IPv4Address | IPv6Address | None:
    try:
        return plain(os.environ.get("KUBERNETES_SERVICE_HOST", "").strip("[]"))
    except ValueError:  # not in a cluster, or told by name
        return None


class Guard:
    """Resolve first, check every address, give only what passed."""

    def __init__(self, allow: Sequence[str] = (), resolver: Resolver = resolve) -> None:
        self._allow = tuple(allow)
        self._resolver = resolver

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Checked addresses of the host; TargetForbidden or TargetUnresolvable."""
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolver(host, port)
        except TimeoutError as error:
            raise TargetUnresolvable("the resolver does not answer") from error
        if not found:
            raise TargetUnresolvable("the target's name has no address")
        for address in found:
            if not is_permitted(address, self._allow):
                raise TargetForbidden("the target's address is not allowed")
        return found
