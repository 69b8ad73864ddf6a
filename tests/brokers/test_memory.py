"""The broker contract in memory, and what its server offers to tests of other layers."""

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BoxConflict, BoxRecreated, BoxRefused, BrokerUnreachable, Fenced, TooLarge
from deadletter.brokers.memory import MemoryBroker, MemoryServer
from deadletter.brokers.types import Buried, CommitBatch, Delivered, Parked
from deadletter.core.box_types import BoxSpec
from deadletter.core.replay_progress import SettledAs
from tests.brokers.broker_contract import BrokerContract
from tests.brokers.helpers import (
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def broker(server: MemoryServer) -> Broker:
    return MemoryBroker(server)


class TestMemory(BrokerContract):
    """The contract in memory."""


async def test_connections_share_the_server(server: MemoryServer) -> None:
    boxes = await make_boxes(MemoryBroker(server), "orders")
    await publish_all(MemoryBroker(server), boxes.dead, numbered_messages(3))
    assert await values(MemoryBroker(server), boxes.dead) == [b"v0", b"v1", b"v2"]


async def test_a_box_that_refuses_writes_changes_nothing(server: MemoryServer, broker: Broker) -> None:
    boxes = await make_boxes(broker, "orders")
    await publish_all(broker, boxes.source, numbered_messages(1))
    server.refuse[boxes.dead] = BoxRefused("full")
    async with broker.subscribe(boxes.subscription()) as subscription:
        (claim,) = await subscription.claim(1)
        with pytest.raises(BoxRefused):
            await subscription.settle(claim, Buried(boxes.dead, claim.message))
        del server.refuse[boxes.dead]
        await subscription.settle(claim, Buried(boxes.dead, claim.message))
    assert await values(broker, boxes.dead) == [b"v0"]


async def test_a_server_that_is_down_answers_nothing(server: MemoryServer, broker: Broker) -> None:
    server.down = BrokerUnreachable("down")
    with pytest.raises(BrokerUnreachable):
        await broker.server_info()
    server.down = None
    assert (await broker.server_info()).kind == "Memory"


async def test_a_second_subscription_of_the_same_pod_takes_over(server: MemoryServer) -> None:
    broker = MemoryBroker(server)
    boxes = await make_boxes(broker, "orders")
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as killed, broker.subscribe(boxes.subscription()) as again:
        with pytest.raises(Fenced):
            await killed.claim(1)
        (claim,) = await again.claim(1)
        assert not killed.holds(claim)
        await again.settle(claim, Delivered())


async def test_released_claims_are_not_held(server: MemoryServer, broker: Broker) -> None:
    boxes = await make_boxes(broker, "orders")
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with (
        broker.subscribe(boxes.subscription("pod-0")) as first,
        broker.subscribe(boxes.subscription("pod-1")) as second,
    ):
        (claim,) = await first.claim(1)
        assert await second.claim(1) == []
        server.release_claims(boxes.source, boxes.group, "pod-0")
        assert not first.holds(claim)
        with pytest.raises(Fenced):
            await first.settle(claim, Parked(claim.message, 0))
        (taken,) = await second.claim(1)
        assert taken.place == claim.place


async def test_a_recreated_box_stops_the_writer_until_the_ledger_is_reset(broker: Broker) -> None:
    boxes = await make_boxes(broker, "orders")
    await publish_all(broker, boxes.dead, numbered_messages(1))
    letters = await read_all(broker, boxes.dead)
    batch = CommitBatch(
        progress_of(letters), publications_to(boxes.target, letters), {SettledAs.Replayed: [letters[0].place.offset]}
    )
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        await writer.commit(batch)
    await broker.delete([boxes.dead])
    await broker.ensure(BoxSpec(boxes.dead, 1))
    with pytest.raises(BoxRecreated):
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2"):
            pass
    await broker.reset_ledger(boxes.dead, boxes.ledger)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2") as writer:
        assert writer.is_open(0)


async def test_a_batch_that_is_too_large_writes_nothing_and_ends_the_writer(
    server: MemoryServer, broker: Broker
) -> None:
    boxes = await make_boxes(broker, "orders")
    await publish_all(broker, boxes.dead, numbered_messages(1))
    letters = await read_all(broker, boxes.dead)
    server.boxes[boxes.target].max_message_bytes = 1
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        for expected in (TooLarge, Fenced):
            with pytest.raises(expected):
                await writer.commit(CommitBatch(progress_of(letters), publications_to(boxes.target, letters)))
    assert await values(broker, boxes.target) == []


async def test_partitions_are_added_and_never_removed(broker: Broker) -> None:
    assert (await broker.ensure(BoxSpec("orders", 2))).partitions == 2
    assert (await broker.ensure(BoxSpec("orders", 4))).partitions == 4
    assert (await broker.ensure(BoxSpec("orders"))).partitions == 4
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec("orders", 3))
