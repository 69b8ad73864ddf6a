"""Transaction markers that are lost while brokers restart: no buried or replayed letter is lost or duplicated.

A marker is lost here because the coordinator is never told that the partition or group belongs to the transaction.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import hanging_transactions
from deadletter.brokers.kafka.transactions import Transaction
from deadletter.brokers.types import Buried, CommitBatch, Delivered, Parked
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.bed import beds
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import (
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)
from tests.brokers.secured_kafka import open_secured_kafka

pytestmark = pytest.mark.server


@pytest.fixture
async def broker(bed: beds.Bed) -> AsyncIterator[Broker]:
    async with open_broker(kafka_at(open_secured_kafka(bed).plain), no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def boxes(broker: Broker) -> Boxes:
    boxes = await make_boxes(broker, fresh_name("markers"))
    await publish_all(broker, boxes.source, numbered_messages(2))
    return boxes


@pytest.fixture
def lost_markers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics and groups whose next marker is lost; a test adds names."""
    names: set[str] = set()
    add, add_group = TransactionManager.maybe_add_partition_to_txn, Sender._do_add_offsets_to_txn

    def add_unreported(self: Any, tp: TopicPartition) -> None:
        if tp.topic in names:
            names.remove(tp.topic)
            self._txn_partitions.add(tp)
        add(self, tp)

    async def add_group_unreported(self: Any, group: str) -> Any:
        if group not in names:
            return await add_group(self, group)
        names.remove(group)
        self._txn_manager.consumer_group_added(group)
        return None

    monkeypatch.setattr(TransactionManager, "maybe_add_partition_to_txn", add_unreported)
    monkeypatch.setattr(Sender, "_do_add_offsets_to_txn", add_group_unreported)
    return names


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes the next burial fail after everything was sent."""
    commit = Transaction.commit_offsets

    def fail_next() -> None:
        async def failing(self: Transaction, *arguments: Any) -> None:
            monkeypatch.setattr(Transaction, "commit_offsets", commit)
            await commit(self, *arguments)
            raise BrokerUnreachable("aborted by the test")

        monkeypatch.setattr(Transaction, "commit_offsets", failing)

    return fail_next


async def test_an_aborted_burial_is_not_committed_later(
    broker: Broker, boxes: Boxes, lost_markers: set[str], fail_once: Callable[[], None]
) -> None:
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, second = await claim_some(subscription, 2)
        lost_markers.add(boxes.dead)
        fail_once()
        await subscription.settle(first, Buried(boxes.dead, first.message))
        await subscription.settle(second, Buried(boxes.dead, second.message))
    assert await values(broker, boxes.dead) == [b"v0", b"v1"]


async def test_the_next_courier_does_not_abort_a_committed_burial(
    broker: Broker, boxes: Boxes, lost_markers: set[str], fail_once: Callable[[], None]
) -> None:
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, _ = await claim_some(subscription, 2)
        lost_markers.add(boxes.dead)
        await subscription.settle(first, Buried(boxes.dead, first.message))
    async with broker.subscribe(boxes.subscription()) as subscription:
        (second,) = await claim_some(subscription, 1)
        fail_once()
        await subscription.settle(second, Buried(boxes.dead, second.message))
    assert await values(broker, boxes.dead) == [b"v0", b"v1"]


async def test_the_next_burial_does_not_abort_a_committed_one(
    broker: Broker, boxes: Boxes, lost_markers: set[str], fail_once: Callable[[], None]
) -> None:
    """The same courier continues after its broker came back."""
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, second = await claim_some(subscription, 2)
        lost_markers.add(boxes.dead)
        await subscription.settle(first, Buried(boxes.dead, first.message))
        partition = subscription._assignment.partitions[TopicPartition(boxes.source, 0)]  # type: ignore[attr-defined]
        for connection in list(partition._producer._producer.client._conns.values()):
            connection.close()
        fail_once()
        with pytest.raises(BrokerUnreachable):
            await subscription.settle(second, Buried(boxes.dead, second.message))
        await subscription.settle(second, Buried(boxes.dead, second.message))
    assert await values(broker, boxes.dead) == [b"v0", b"v1"]


async def test_an_offset_whose_marker_was_lost_is_committed(
    broker: Broker, boxes: Boxes, lost_markers: set[str]
) -> None:
    async with broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 2)
        await subscription.settle(claims[0], Delivered())
        lost_markers.add(boxes.group)
        await subscription.settle(claims[1], Buried(boxes.dead, claims[1].message))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert await subscription.claim(1) == []
    assert await values(broker, boxes.dead) == [b"v1"]


async def test_a_parked_letter_whose_settlement_lost_its_marker_is_not_buried_twice(
    broker: Broker, boxes: Boxes, lost_markers: set[str]
) -> None:
    async with broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 2):
            await subscription.settle(claim, Parked(claim.message, now_ms()))
        claims = await claim_some(subscription, 2)
        await subscription.settle(claims[0], Delivered())
        lost_markers.add(boxes.ledger)
        await subscription.settle(claims[1], Buried(boxes.dead, claims[1].message))
    async with broker.subscribe(boxes.subscription()) as subscription:
        assert await subscription.claim(1) == []
    assert await values(broker, boxes.dead) == [claims[1].message.value]


async def test_the_outcome_of_a_transaction_is_kept_when_opening_fails(
    broker: Broker, boxes: Boxes, lost_markers: set[str], fail_once: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator knows how a transaction ended only until the id is opened again."""
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, _ = await claim_some(subscription, 2)
        lost_markers.add(boxes.dead)
        await subscription.settle(first, Buried(boxes.dead, first.message))
    first_open_offsets = hanging_transactions.first_open_offsets

    async def failing(*arguments: Any) -> Any:
        monkeypatch.setattr(hanging_transactions, "first_open_offsets", first_open_offsets)
        raise BrokerUnreachable("the broker disconnected again")

    monkeypatch.setattr(hanging_transactions, "first_open_offsets", failing)
    async with broker.subscribe(boxes.subscription()) as subscription:
        (second,) = await claim_some(subscription, 1)
        fail_once()
        await subscription.settle(second, Buried(boxes.dead, second.message))
    assert await values(broker, boxes.dead) == [b"v0", b"v1"]


@pytest.fixture
async def replay(broker: Broker, boxes: Boxes) -> Callable[[str, int], Any]:
    """A function that replays one letter under a uid, and returns False if it was settled already."""
    await publish_all(broker, boxes.dead, numbered_messages(2))
    letters = await read_all(broker, boxes.dead)

    async def replay_one(uid: str, number: int) -> bool:
        one, offset = letters[number : number + 1], letters[number].place.offset
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, uid) as writer:
            if not writer.is_open(offset):
                return False
            await writer.commit(
                CommitBatch(progress_of(one), publications_to(boxes.target, one), {SettledAs.Replayed: [offset]})
            )
        return True

    return replay_one


@pytest.mark.parametrize("box", ["ledger", "target"])
async def test_the_next_replay_does_not_undo_the_one_before(
    broker: Broker, boxes: Boxes, lost_markers: set[str], replay: Callable[[str, int], Any], box: str
) -> None:
    """Two Replays of one queue, and two rounds of a redrive, use the same transactional id."""
    lost_markers.add(getattr(boxes, box))
    assert await replay("uid-1", 0)
    assert not await replay("uid-2", 0)
    assert await replay("uid-2", 1)
    assert await values(broker, boxes.target) == [b"v0", b"v1"]
    assert len(await broker.published_positions(boxes.ledger, "uid-1")) == 1
