"""Fixtures of the known faults: one queue on a real Kafka, and an operator process for one test."""

import uuid
from collections.abc import AsyncIterator

import pytest

from deadletter.brokers.connect import open_broker
from tests.brokers.connections import kafka_at
from tests.controller.conftest import kube, kubeconfig, operator, start
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, no_secret

__all__ = ["kube", "kubeconfig", "operator", "start"]


@pytest.fixture
async def queue(kafka: str) -> AsyncIterator[BrokerQueue]:
    """A queue whose boxes the test creates."""
    spec = kafka_at(kafka)
    async with open_broker(spec, no_secret, allow=LOOPBACK) as broker:
        yield BrokerQueue(broker, spec, f"fault-{uuid.uuid4().hex[:10]}.")
