"""A desk on Kafka: what it does with the time, the memory and the metadata it has."""

import time
from types import SimpleNamespace

import pytest

from deadletter.brokers.base import Broker
from deadletter.brokers.kafka import desk as kafka_desk
from deadletter.brokers.values import Delivered
from tests.brokers.opening import fresh_name
from tests.brokers.staging import claim_some, lay, make_boxes, now, numbered

BROKER = "kafka"
MOST_IN_HAND = 2 * 256  # of a courier with the highest concurrency


async def test_a_desk_with_nothing_to_claim_says_so_however_the_time_passes_between_two_looks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("idle"))

    def clock(step: float) -> SimpleNamespace:
        looks = iter(range(1_000_000))
        return SimpleNamespace(monotonic=lambda: next(looks) * step, time=time.time, time_ns=time.time_ns)

    async with broker.desk(boxes.desk()) as desk:
        for hundredths in range(20, 110, 5):
            monkeypatch.setattr(kafka_desk, "time", clock(hundredths / 100))
            assert await desk.claim(1) == []


async def test_hundreds_of_messages_that_failed_fit_beside_the_offset_of_their_group(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("many"))
    await lay(broker, boxes.source, numbered(MOST_IN_HAND + 1))
    async with broker.desk(boxes.desk()) as desk:
        claims = await claim_some(desk, MOST_IN_HAND + 1)
        for claim in claims[1:]:
            desk.note(claim, 3, now())
        await desk.settle(claims[0], Delivered())
    async with broker.desk(boxes.desk("pod-1")) as desk:
        again = await claim_some(desk, MOST_IN_HAND)
        assert {claim.message.value for claim in again} == {claim.message.value for claim in claims[1:]}
        assert {claim.attempts for claim in again} == {3}
