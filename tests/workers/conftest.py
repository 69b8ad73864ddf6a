"""Fixtures for the tests of the workers."""

import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.memory import MemoryBroker, MemoryServer
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import LOOPBACK, no_secret
from tests.workers.replay_scene import Scene


@pytest.fixture(params=["kafka", "redis"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[BrokerQueue]:
    address = request.getfixturevalue(request.param)
    assignment = {"kafka": {"bootstrapServers": [address]}} if request.param == "kafka" else {"redis": {"url": address}}
    spec = BrokerConnectionSpec.model_validate(assignment)
    tag = f"courier-{uuid.uuid4().hex[:10]}"
    prefix = f"{{{tag}}}." if spec.is_redis else f"{tag}."
    async with open_broker(spec, no_secret, allow=LOOPBACK) as broker:
        made = BrokerQueue(broker, spec, prefix)
        await made.create()
        yield made


@pytest.fixture
async def kafka_queue(kafka: str) -> AsyncIterator[BrokerQueue]:
    """A queue on Kafka whose boxes the test creates."""
    spec = BrokerConnectionSpec.model_validate({"kafka": {"bootstrapServers": [kafka]}})
    async with open_broker(spec, no_secret, allow=LOOPBACK) as broker:
        yield BrokerQueue(broker, spec, f"courier-{uuid.uuid4().hex[:10]}.")


@pytest.fixture
def server() -> MemoryServer:
    """A memory broker, for tests that do not depend on the broker."""
    return MemoryServer()


@pytest.fixture
async def scene(server: MemoryServer) -> Scene:
    """A dead box on the memory broker; test files on real brokers define their own."""
    return await Scene(MemoryBroker(server)).build()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server certificate for localhost, a client certificate."""
    folder = tmp_path_factory.mktemp("tls")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    signed = f"{new} -CA ca.crt -CAkey ca.key"
    for words in (
        f"{new} -keyout ca.key -out ca.crt -subj /CN=ca",
        f"{signed} -keyout tls.key -out tls.crt -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        "-addext basicConstraints=critical,CA:FALSE",
        f"{signed} -keyout client.key -out client.crt -subj /CN=courier -addext basicConstraints=critical,CA:FALSE",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder
