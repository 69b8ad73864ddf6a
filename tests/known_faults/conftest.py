"""Fixtures of the known faults: one queue on a real Kafka, and an operator of the test's own."""

import uuid
from collections.abc import AsyncIterator

import pytest

from deadletter.brokers.connect import open_broker
from tests.brokers.opening import kafka_at
from tests.controller.conftest import kubeconfig, operator, place, start
from tests.workers.couriers import LOOPBACK, no_secret
from tests.workers.wires import Wire

__all__ = ["kubeconfig", "operator", "place", "start"]


@pytest.fixture
async def wire(kafka: str) -> AsyncIterator[Wire]:
    """The boxes of one queue; the test makes them."""
    spec = kafka_at(kafka)
    async with open_broker(spec, no_secret, allow=LOOPBACK) as broker:
        yield Wire(broker, spec, f"fault-{uuid.uuid4().hex[:10]}.")
