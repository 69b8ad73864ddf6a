"""Refuse brokers whose host names resolve to addresses that the operator must not dial."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence

from deadletter.brokers.errors import AddressForbidden, BrokerUnreachable
from deadletter.net.address_guard import is_dialable

FORBIDDEN = (
    "the broker's address is not one that this operator may dial (ourselves, link-local, metadata); "
    "allowAddresses of the chart makes exceptions"
)
AddressCheck = Callable[[Iterable[str]], Awaitable[None]]


def address_check(allow: Sequence[str]) -> AddressCheck:
    """Return a check that resolves host names; AddressForbidden if any of their addresses must not be dialled."""
    passed: set[str] = set()

    async def check(hosts: Iterable[str]) -> None:
        for host in {host.strip("[]") for host in hosts} - passed:
            for address in await _resolve(host):
                if not is_dialable(address, allow):
                    # The text does not name the address: a tenant could scan ports with it.
                    raise AddressForbidden(FORBIDDEN)
            passed.add(host)

    return check


async def _resolve(host: str) -> set[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachable("the broker's host name cannot be resolved") from error
    return {str(entry[4][0]) for entry in found}
