"""A message that its box refuses is held alone and reported, and all other messages go on."""

import asyncio
import time
from dataclasses import replace

import pytest
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from structlog.testing import capture_logs

from deadletter.brokers.types import Claim
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.core.policy import Policy
from deadletter.wall_clock import monotonic_ms
from deadletter.workers.courier import gate as gates
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.gate import Gate, HeldClaim
from tests.workers.broker_queue import BrokerQueue, producing
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, status, until

PARKING = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms", "max": "300ms"}, "maxAttempts": 5}
PARK_AT_ONCE = {"inlineLimit": "100ms"}
LARGE = 1_048_300  # the largest message of a topic with default configs; its envelope makes the letter larger
FAR_AHEAD_MS = 2 * 86_400_000
LATE = [f"late{n}".encode() for n in range(10)]


def pause_of(courier: Courier) -> str:
    return courier.gate.pause_reason(monotonic_ms())[0]


async def committed_offset(queue: BrokerQueue, group: str) -> int:
    """Return the group's offset of partition 0 of the source."""
    assert queue.spec.kafka is not None
    admin = AIOKafkaAdminClient(bootstrap_servers=queue.spec.kafka.bootstrap_servers)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
        return int(offsets[TopicPartition(f"{queue.prefix}orders", 0)].offset)
    finally:
        await admin.close()


async def send_future_message(queue: BrokerQueue) -> None:
    far = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    await queue.broker.ensure(BoxSpec(f"{queue.prefix}orders", 2, 1, config=far))
    ahead = int(time.time() * 1000) + FAR_AHEAD_MS
    async with producing(queue) as producer:
        await producer.send_and_wait(f"{queue.prefix}orders", b"future", key=b"f", partition=0, timestamp_ms=ahead)


async def test_a_letter_too_large_for_its_dead_topic_does_not_hold_up_other_messages(kafka_queue: BrokerQueue):
    queue = kafka_queue
    await queue.create()
    async with producing(queue) as producer:
        await producer.send_and_wait(f"{queue.prefix}orders", b"x" * LARGE, key=b"big", partition=0)
    refuse_large = lambda one: web.Response(status=422 if len(one.body) > 1_000 else 200)  # noqa: E731
    with capture_logs() as logs:
        async with serving(refuse_large) as service:
            assignment = queue.assignment(service.url)
            async with queue.courier(assignment) as courier:
                await until(lambda: courier.gate.held_reason[0] == "TooLarge")
                for partition in (0, 1):
                    await queue.send(*(message(one.decode(), "k") for one in LATE), partition=partition)
                await until(lambda: all(service.bodies.count(one) == 2 for one in LATE))
                await until(lambda: courier.in_flight.unsettled == 1)
                assert pause_of(courier) == ""
                assert await committed_offset(queue, assignment.group) == 0
                await queue.broker.ensure(BoxSpec(f"{queue.prefix}dead", 2, 1, config={"max.message.bytes": "2000000"}))
                await queue.until_buried(1)
                await until(lambda: courier.gate.held_reason == ("", ""))
    held = [line for line in logs if line["event"] == "message refused by its box, held alone"]
    assert held[0]["id"] == f"{queue.prefix}orders/0/0"
    assert held[0]["reason"] == "TooLarge"


async def test_a_message_with_a_time_far_ahead_does_not_hold_up_other_messages(kafka_queue: BrokerQueue):
    """Its retry topic is one of an older release, which checks the times of messages."""
    queue = kafka_queue
    await queue.create()
    await send_future_message(queue)
    async with serving(lambda one: web.Response(status=500 if one.body == b"future" else 200)) as service:
        assignment = queue.assignment(service.url, policy=PARKING, delivery=PARK_AT_ONCE)
        async with queue.courier(assignment) as courier:
            await until(lambda: courier.gate.held_reason[0] == "MessageRefused")
            await queue.send(*(message(one.decode(), "k") for one in LATE), partition=0)
            await until(lambda: set(LATE) <= set(service.bodies))
            assert pause_of(courier) == ""
            retry = BoxSpec(
                f"{queue.prefix}retry", 2, 1, config={"message.timestamp.type": "LogAppendTime"}, is_retry_box=True
            )
            await queue.broker.ensure(retry)
            await until(lambda: service.bodies.count(b"future") > 1)


async def test_a_retry_topic_with_the_time_of_append_takes_a_message_with_a_time_far_ahead(kafka_queue: BrokerQueue):
    queue = kafka_queue
    await queue.create()
    await queue.broker.ensure(
        BoxSpec(f"{queue.prefix}retry", 2, 1, config={"message.timestamp.type": "LogAppendTime"}, is_retry_box=True)
    )
    await send_future_message(queue)
    attempts: list[Received] = []

    def answer(one: Received) -> web.Response:
        attempts.append(one)
        return web.Response(status=200 if len(attempts) > 2 else 500)

    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy=PARKING, delivery=PARK_AT_ONCE)
        async with queue.courier(assignment) as courier:
            await until(lambda: len(attempts) == 3)
            assert courier.gate.held_reason == ("", "")
    assert len({one.headers["Dlq-Timestamp"] for one in attempts}) == 1  # the message's own, in every attempt


async def test_a_held_message_is_in_the_heartbeat_while_others_are_delivered():
    memory = MemoryQueue()
    memory.send(message("x" * 2_000, "big"))
    memory.server.boxes["dead"].max_message_bytes = 1_000
    refuse_large = lambda one: web.Response(status=422 if len(one.body) > 1_000 else 200)  # noqa: E731
    async with serving(refuse_large) as service, memory.courier(courier_assignment(service.url)):
        await until(lambda: memory.pause_reasons == ["TooLarge"])
        memory.send(message("later"))
        await until(lambda: b"later" in service.bodies)
        (reported,) = memory.server.ledgers["dead.ledger"].worker_statuses.values()
        assert "orders/0/0" in reported.message


async def test_many_held_messages_pause_the_courier(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "MAX_HELD_ALONE", 3)
    memory = MemoryQueue()
    memory.server.boxes["dead"].max_message_bytes = 100
    memory.send(*(message(f"{n}", f"k{n}") for n in range(3)))
    async with serving(status(422)) as service, memory.courier(courier_assignment(service.url)) as courier:
        await until(lambda: pause_of(courier) == "TooLarge")
        memory.send(message("later"))
        await asyncio.sleep(0.5)
        assert b"later" not in service.bodies
        memory.server.boxes["dead"].max_message_bytes = None
        await until(lambda: memory.is_settled)
    assert len(memory.buried()) == 4


def held(size: int = 10) -> tuple[Claim, HeldClaim]:
    return Claim(Place("orders", 0, 1), Message(None, b"v")), HeldClaim("orders/0/1", size, "TooLarge", "too large")


def test_held_claims_pause_only_if_they_are_many_or_large() -> None:
    gate = Gate(Policy())
    claims = [held() for _ in range(gates.MAX_HELD_ALONE)]
    for claim, one in claims[1:]:
        gate.hold_alone(claim, one)
    assert gate.pause_reason(0) == ("", "")
    gate.hold_alone(*claims[0])
    assert gate.pause_reason(0)[0] == "TooLarge"
    gate.clear_refusal(claims[0][0])
    assert gate.pause_reason(0) == ("", "")
    claim, one = held()
    gate.hold_alone(claims[0][0], replace(one, size=gates.MAX_HELD_ALONE_BYTES))
    assert gate.pause_reason(0)[0] == "TooLarge"


def test_a_claim_that_its_box_refuses_like_all_others_pauses_the_courier() -> None:
    gate, (claim, one) = Gate(Policy()), held()
    gate.hold_alone(claim, one)
    gate.add_refusal(claim, "BoxRefused", "the disk is full")
    assert (gate.pause_reason(0)[0], gate.held_reason) == ("BoxRefused", ("", ""))
    gate.hold_alone(claim, one)
    assert (gate.pause_reason(0)[0], gate.held_reason[0]) == ("", "TooLarge")
