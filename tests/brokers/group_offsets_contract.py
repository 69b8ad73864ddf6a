"""Tests of consumer groups that lost their offsets: the same for the broker in memory, Kafka and Redis."""

import asyncio
from dataclasses import replace

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import GroupOffsetsLost
from deadletter.brokers.lost_offsets import StartPosition
from deadletter.brokers.types import Delivered, ResumedGroup
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message
from deadletter.wall_clock import now_ms
from tests.brokers.group_deletion import delete_group
from tests.brokers.helpers import (
    Boxes,
    MakeName,
    claim_some,
    make_boxes,
    numbered_messages,
    publish_all,
    settle_all,
)


async def publish_now(broker: Broker, box: str, count: int, first: int) -> None:
    """Publish messages with the current time; Redis sets the time itself."""
    await publish_all(
        broker, box, [Message(one.key, one.value, one.headers, now_ms()) for one in numbered_messages(count, first)]
    )


async def claim_as_started_group(broker: Broker, boxes: Boxes, count: int) -> list[bytes | None]:
    """Return the values that a courier of a group that has started claims."""
    async with broker.subscribe(boxes.subscription(from_earliest=False, has_started=True)) as subscription:
        claims = await claim_some(subscription, count)
        await settle_all(subscription, claims)
        assert await subscription.claim(1) == []
    return [claim.message.value for claim in claims]


class GroupOffsetsContract:
    """Tests of starting, losing and resuming the offsets of a group."""

    @pytest.fixture
    async def lost(self, broker: Broker, fresh: MakeName) -> tuple[Boxes, int]:
        """A group that lost its offsets after v0 to v2 of v0 to v5 were delivered; also the time before v5."""
        boxes = await make_boxes(broker, fresh("q"))
        await publish_now(broker, boxes.source, 3, 0)
        async with broker.subscribe(boxes.subscription()) as subscription:
            await settle_all(subscription, await claim_some(subscription, 3))
        await publish_now(broker, boxes.source, 2, 3)
        await asyncio.sleep(0.02)  # so that the next message has a later time
        before_v5 = now_ms()
        await publish_now(broker, boxes.source, 1, 5)
        assert not await broker.is_group_lost(boxes.source, boxes.group)
        await delete_group(broker, boxes.source, boxes.group)
        return boxes, before_v5

    @pytest.mark.parametrize("from_earliest", [True, False])
    async def test_a_started_group_without_offsets_neither_reads_nor_commits(
        self, broker: Broker, lost: tuple[Boxes, int], from_earliest: bool
    ) -> None:
        boxes, _ = lost
        for _ in range(2):
            with pytest.raises(GroupOffsetsLost, match=boxes.group):
                async with broker.subscribe(boxes.subscription(from_earliest=from_earliest, has_started=True)):
                    pass
            assert await broker.is_group_lost(boxes.source, boxes.group)

    @pytest.mark.parametrize(("start", "values"), [("Earliest", [0, 1, 2, 3, 4, 5]), ("Latest", []), ("time", [5])])
    async def test_a_lost_group_resumes_at_the_chosen_position(
        self, broker: Broker, lost: tuple[Boxes, int], start: StartPosition, values: list[int]
    ) -> None:
        boxes, before_v5 = lost
        position = before_v5 if start == "time" else start
        resumed = await broker.resume_group(boxes.source, boxes.group, position)
        assert resumed in (ResumedGroup(6 - len(values), len(values)), ResumedGroup(None, None))
        assert not await broker.is_group_lost(boxes.source, boxes.group)
        await publish_now(broker, boxes.source, 1, 6)
        assert await claim_as_started_group(broker, boxes, len(values) + 1) == [b"v%d" % n for n in (*values, 6)]

    async def test_a_group_is_resumed_once(self, broker: Broker, lost: tuple[Boxes, int]) -> None:
        boxes, _ = lost
        assert await broker.resume_group(boxes.source, boxes.group, "Latest")
        assert await broker.resume_group(boxes.source, boxes.group, "Earliest") is None
        await publish_now(broker, boxes.source, 1, 6)
        assert await claim_as_started_group(broker, boxes, 1) == [b"v6"]

    async def test_a_time_after_all_messages_is_the_end(self, broker: Broker, lost: tuple[Boxes, int]) -> None:
        boxes, _ = lost
        await broker.resume_group(boxes.source, boxes.group, now_ms() + 3_600_000)
        assert not await broker.is_group_lost(boxes.source, boxes.group)
        async with broker.subscribe(boxes.subscription(has_started=True)) as subscription:
            assert await subscription.claim(1) == []

    async def test_a_group_of_an_empty_source_is_not_lost(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        async with broker.subscribe(boxes.subscription()) as subscription:
            assert await subscription.claim(1) == []
        await delete_group(broker, boxes.source, boxes.group)
        assert not await broker.is_group_lost(boxes.source, boxes.group)
        assert await broker.resume_group(boxes.source, boxes.group, "Latest") is None
        async with broker.subscribe(boxes.subscription(from_earliest=False, has_started=True)) as subscription:
            await publish_now(broker, boxes.source, 1, 0)
            assert [claim.message.value for claim in await claim_some(subscription, 1)] == [b"v0"]

    async def test_a_partition_without_an_offset_is_a_new_one(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_now(broker, boxes.source, 1, 0)
        async with broker.subscribe(boxes.subscription()) as subscription:
            await settle_all(subscription, await claim_some(subscription, 1))
        state = await broker.ensure(BoxSpec(boxes.source, 2))
        if state.partitions == 1:
            return  # a stream has one partition
        await publish_all(broker, boxes.source, numbered_messages(2, 5), 1)
        async with broker.subscribe(boxes.subscription(from_earliest=False, has_started=True)) as subscription:
            claims = await claim_some(subscription, 2)
            assert [claim.message.value for claim in claims] == [b"v5", b"v6"]
            await subscription.settle(claims[0], Delivered())

    @pytest.mark.parametrize(("from_earliest", "values"), [(True, [0, 1, 2, 3, 4]), (False, [4])])
    async def test_a_new_source_starts_although_its_group_has_members_of_another_source(
        self, broker: Broker, fresh: MakeName, from_earliest: bool, values: list[int]
    ) -> None:
        other = await make_boxes(broker, fresh("q"), partitions=2)
        boxes = replace(await make_boxes(broker, fresh("q"), partitions=2), group=other.group)
        await publish_all(broker, boxes.source, numbered_messages(4), None)
        async with broker.subscribe(other.subscription("pod-a")) as other_subscription:
            async with broker.subscribe(boxes.subscription("pod-b", from_earliest)) as subscription:
                await publish_now(broker, boxes.source, 1, 4)
                claims = await claim_some(subscription, len(values))
                assert sorted(claim.message.value or b"" for claim in claims) == [b"v%d" % n for n in values]
                assert await subscription.claim(1) == []
            await publish_now(broker, other.source, 1, 9)
            assert [claim.message.value for claim in await claim_some(other_subscription, 1)] == [b"v9"]
