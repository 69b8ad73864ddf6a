"""A courier whose consumer group lost its offsets: it delivers nothing until a position is chosen, and then goes on."""

import asyncio
import signal
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from deadletter.api.assignments import CourierAssignment
from tests.bed import ports
from tests.brokers.groups import delete_group
from tests.brokers.staging import PATIENCE
from tests.workers.couriers import message
from tests.workers.pods import Pod
from tests.workers.services import Service, serving, until
from tests.workers.wires import Wire


async def readiness(port: int) -> str:
    """What /readyz says, once the pod has tried its broker."""
    async with ClientSession() as session, asyncio.timeout(PATIENCE):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    text = await answer.text()
            except ClientError:
                text = ""
            if text and "has not answered yet" not in text:
                return text
            await asyncio.sleep(0.1)


async def send(wire: Wire, name: str, count: int = 5) -> None:
    await wire.send(*(message(f"{name}{n}", f"k{n}") for n in range(count)))


async def lose_offsets(wire: Wire, service: Service, told: CourierAssignment) -> None:
    """Five messages are delivered, five more wait, and the group's offsets go."""
    async with wire.courier(told):
        await send(wire, "a")
        await until(lambda: len(service.received) == 5)
    await send(wire, "b")
    await delete_group(wire.broker, f"{wire.prefix}orders", told.group)


@pytest.mark.parametrize("start_from", ["Latest", "Earliest"])
async def test_a_courier_without_its_offsets_waits_for_a_decision(wire: Wire, start_from: str, tmp_path: Path) -> None:
    async with serving() as service:
        told = wire.assignment(service.url, start_from=start_from, group_started=True)
        await lose_offsets(wire, service, wire.assignment(service.url, start_from=start_from))
        (port,) = ports.free("127.0.0.1")
        pod = Pod(tmp_path, told, DLQ_HEALTH_PORT=str(port))
        await pod.start()
        try:
            said = await readiness(port)
            assert said.startswith("GroupOffsetsLost: ")
            assert told.group in said
            assert "deadletter.dev/resume-from" in said
            assert len(service.received) == 5
            assert await wire.broker.is_group_lost(f"{wire.prefix}orders", told.group)
            await wire.broker.resume_group(f"{wire.prefix}orders", told.group, "Earliest")
            await until(lambda: len(service.received) == 15)
            assert await readiness(port) == "ok\n"
        finally:
            assert await pod.end(signal.SIGTERM) == 0
    assert set(service.bodies[5:]) == {f"{name}{n}".encode() for name in "ab" for n in range(5)}
