"""Connecting to a cluster that does not answer, or whose address is not allowed."""

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerUnreachable
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets


async def test_a_broker_that_does_not_answer_is_unreachable() -> None:
    async with open_broker(kafka_at("127.0.0.1:9"), no_secrets, LOOPBACK) as unreachable:
        with pytest.raises(BrokerUnreachable):
            await unreachable.server_info()


async def test_an_address_that_the_settings_do_not_allow_is_not_connected_to() -> None:
    async with open_broker(kafka_at("127.0.0.1:9"), no_secrets, ()) as guarded:
        with pytest.raises(BrokerUnreachable, match="may dial"):
            await guarded.server_info()
