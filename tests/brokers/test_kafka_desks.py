"""A desk on Kafka: what it does with the time, the memory and the metadata it has."""

import time
from types import SimpleNamespace

import pytest

from deadletter.brokers.base import Broker
from deadletter.brokers.kafka import desk as kafka_desk
from tests.brokers.opening import fresh_name
from tests.brokers.staging import make_boxes

BROKER = "kafka"


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
