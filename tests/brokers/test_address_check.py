"""Addresses of brokers that may be dialled."""

import pytest

from deadletter.brokers.address_check import address_check
from deadletter.brokers.errors import BrokerUnreachable


async def test_a_host_name_is_checked_by_its_addresses() -> None:
    with pytest.raises(BrokerUnreachable, match="may dial"):
        await address_check(())(["localhost"])
    await address_check(("127.0.0.0/8", "::1/128"))(["localhost", "[::1]"])


async def test_an_unknown_host_name_is_reported() -> None:
    with pytest.raises(BrokerUnreachable, match="resolved"):
        await address_check(())([f"{'x' * 70}.invalid"])  # too long for any name server to be asked
