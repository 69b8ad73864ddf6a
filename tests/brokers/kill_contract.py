"""Tests of partition writers that are killed, stopped and doubled: no letter is lost or duplicated."""

import random

import pytest

from deadletter.brokers.contract import Broker
from tests.brokers import writer_processes
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import make_boxes


class KillContract:
    """Tests that kill a writer process at any moment."""

    @pytest.fixture
    def kind(self, request: pytest.FixtureRequest) -> str:
        return request.module.BROKER

    @pytest.fixture
    def address(self, request: pytest.FixtureRequest, kind: str) -> str:
        return request.getfixturevalue(kind)

    async def test_a_killed_writer_loses_and_duplicates_nothing(self, kind: str, address: str, broker: Broker) -> None:
        boxes = await make_boxes(broker, fresh_name("kill"))
        await writer_processes.publish_letters(broker, boxes, 5_000)
        await writer_processes.kill_and_finish(kind, address, boxes, 4, 250, seed=random.randrange(1 << 30))
        await writer_processes.check_moved_exactly_once(broker, boxes, 5_000)
        assert len(await broker.published_positions(boxes.ledger, "uid-1")) == 5_000

    @pytest.mark.kill
    @pytest.mark.timeout(1_800)
    async def test_twenty_kills_over_a_hundred_thousand_letters(self, kind: str, address: str, broker: Broker) -> None:
        boxes = await make_boxes(broker, fresh_name("kill"))
        await writer_processes.publish_letters(broker, boxes, 100_000)
        await writer_processes.kill_and_finish(kind, address, boxes, 20, 1_000, seed=random.randrange(1 << 30))
        await writer_processes.check_moved_exactly_once(broker, boxes, 100_000)

    async def test_a_stopped_writer_is_fenced(self, kind: str, address: str, broker: Broker) -> None:
        boxes = await make_boxes(broker, fresh_name("zombie"))
        await writer_processes.publish_letters(broker, boxes, 8_500)
        await writer_processes.fence_a_stopped_writer(kind, address, boxes)
        await writer_processes.check_moved_exactly_once(broker, boxes, 8_500)

    async def test_one_of_two_writers_is_fenced(self, kind: str, address: str, broker: Broker) -> None:
        boxes = await make_boxes(broker, fresh_name("two"))
        await writer_processes.publish_letters(broker, boxes, 2_000)
        await writer_processes.race_two_writers(kind, address, boxes)
        await writer_processes.check_moved_exactly_once(broker, boxes, 2_000)
