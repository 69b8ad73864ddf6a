"""A courier whose consumer group lost its offsets delivers nothing until a person chooses a position."""

import asyncio
import signal
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from deadletter.api.worker_config import CourierAssignment
from tests.bed import ports
from tests.brokers.group_deletion import delete_group
from tests.brokers.helpers import TIMEOUT_S
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import Service, serving, until
from tests.workers.worker_processes import Pod


async def readiness(port: int) -> str:
    """Return the body of /readyz after the pod has tried its broker."""
    async with ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    text = await answer.text()
            except ClientError:
                text = ""
            if text and "has not answered yet" not in text:
                return text
            await asyncio.sleep(0.1)


async def send(queue: BrokerQueue, name: str, count: int = 5) -> None:
    await queue.send(*(message(f"{name}{n}", f"k{n}") for n in range(count)))


async def lose_offsets(queue: BrokerQueue, service: Service, assignment: CourierAssignment) -> None:
    """Deliver five messages, send five more and delete the offsets of the group."""
    async with queue.courier(assignment):
        await send(queue, "a")
        await until(lambda: len(service.received) == 5)
    await send(queue, "b")
    await delete_group(queue.broker, f"{queue.prefix}orders", assignment.group)


@pytest.mark.parametrize("start_from", ["Latest", "Earliest"])
async def test_a_courier_without_its_offsets_waits_for_a_decision(
    queue: BrokerQueue, start_from: str, tmp_path: Path
) -> None:
    async with serving() as service:
        assignment = queue.assignment(service.url, start_from=start_from, group_started=True)
        await lose_offsets(queue, service, queue.assignment(service.url, start_from=start_from))
        (port,) = ports.free("127.0.0.1")
        pod = Pod(tmp_path, assignment, DLQ_HEALTH_PORT=str(port))
        await pod.start()
        try:
            problem = await readiness(port)
            assert problem.startswith("GroupOffsetsLost: ")
            assert assignment.group in problem
            assert "deadletter.dev/resume-from" in problem
            assert len(service.received) == 5
            assert await queue.broker.is_group_lost(f"{queue.prefix}orders", assignment.group)
            await queue.broker.resume_group(f"{queue.prefix}orders", assignment.group, "Earliest")
            await until(lambda: len(service.received) == 15)
            assert await readiness(port) == "ok\n"
        finally:
            assert await pod.end(signal.SIGTERM) == 0, pod.log
    assert set(service.bodies[5:]) == {f"{name}{n}".encode() for name in "ab" for n in range(5)}
