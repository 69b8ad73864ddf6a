"""Fixtures of the workers' tests."""

import uuid
from collections.abc import AsyncIterator

import pytest

from deadletter.api.brokerconnections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from tests.workers.couriers import LOOPBACK, no_secret
from tests.workers.wires import Wire


@pytest.fixture(params=["kafka", "redis"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    address = request.getfixturevalue(request.param)
    told = {"kafka": {"bootstrapServers": [address]}} if request.param == "kafka" else {"redis": {"url": address}}
    spec = BrokerConnectionSpec.model_validate(told)
    tag = f"courier-{uuid.uuid4().hex[:10]}"
    prefix = f"{{{tag}}}." if spec.is_redis else f"{tag}."
    async with open_broker(spec, no_secret, allow=LOOPBACK) as broker:
        made = Wire(broker, spec, prefix)
        await made.make()
        yield made
