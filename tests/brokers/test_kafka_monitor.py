"""The monitor reads many queues together, and one that cannot be decoded does not hide the others."""

import time

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, Undecodable
from deadletter.core.box_types import BoxStats
from deadletter.core.letters import Message
from deadletter.wall_clock import now_ms
from tests.bed import beds
from tests.brokers.connections import fresh_name
from tests.brokers.corrupting import CORRUPTIONS, Corruption, corrupt_batch
from tests.brokers.helpers import (
    TIMEOUT_S,
    make_boxes,
    numbered_messages,
    publish_all,
)

BROKER = "kafka"


@pytest.mark.parametrize("change", CORRUPTIONS, ids=lambda change: change.__name__)
async def test_a_dead_topic_that_cannot_be_decoded_does_not_hide_others(
    broker: Broker, bed: beds.Bed, change: Corruption
) -> None:
    broken, sound = await make_boxes(broker, fresh_name("broken")), await make_boxes(broker, fresh_name("sound"))
    await publish_all(broker, broken.dead, [*numbered_messages(2), Message(b"k", b"poison", (("header-name", b"v"),))])
    await publish_all(broker, sound.dead, numbered_messages(2))
    (log,) = (bed.directory / "kafka" / "log").glob(f"{broken.dead}-0/*.log")
    corrupt_batch(log, change)
    monitor = broker.monitor()
    try:
        found = await monitor.sweep([broken.monitored, sound.monitored], now_ms())
    finally:
        await monitor.close()
    assert isinstance(found[broken.dead], Undecodable)
    assert isinstance(found[sound.dead], BoxStats)
    assert found[sound.dead].depth == 2


async def test_one_sweep_reads_many_queues_with_several_partitions(broker: Broker) -> None:
    queues = [await make_boxes(broker, fresh_name("many"), partitions=3) for _ in range(5)]
    for count, boxes in enumerate(queues):
        for partition in range(3):
            await publish_all(broker, boxes.dead, numbered_messages(count), partition)
    monitor = broker.monitor()
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = await monitor.sweep([boxes.monitored for boxes in queues], now_ms())
            stats = [found[boxes.dead] for boxes in queues]
            depths = [-1 if isinstance(one, BrokerError) else one.depth for one in stats]
            if depths == [0, 3, 6, 9, 12]:
                break
            assert time.monotonic() < deadline, depths
        await monitor.sweep([], now_ms())
    finally:
        await monitor.close()
