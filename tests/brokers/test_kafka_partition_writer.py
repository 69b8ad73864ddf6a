"""The writer of a dead topic: size limits, refusals inside a transaction, recreated topics and corrupt ledgers."""

import contextlib

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import (
    BoxRecreated,
    BrokerError,
    LedgerCorrupt,
    TooLarge,
)
from deadletter.brokers.kafka.send_batches import TopicLimit
from deadletter.brokers.types import Buried, CommitBatch, Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.ledger.records import mark_key
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.wall_clock import now_ms
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import (
    Boxes,
    box_names,
    claim_some,
    make_boxes,
    numbered_messages,
    payload,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)

BROKER = "kafka"


async def make_limited(broker: Broker, source: str, limit: int, *names: str) -> Boxes:
    """Create boxes, and limit the message size of the named ones when they are created, so that it applies at once."""
    boxes = box_names(source)
    for name in names:
        config = {"max.message.bytes": str(limit)}
        await broker.ensure(BoxSpec(getattr(boxes, name), 1, config=config))
    return await make_boxes(broker, source)


async def replay_all(broker: Broker, boxes: Boxes) -> None:
    """Replay every letter of the dead box to the target."""
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        await writer.commit(
            CommitBatch(progress_of(letters), publications_to(boxes.target, letters), {SettledAs.Replayed: offsets})
        )


async def test_a_letter_of_ten_megabytes_is_buried_and_replayed_unchanged(broker: Broker) -> None:
    boxes = await make_limited(broker, fresh_name("large"), 12 << 20, "source", "dead", "target")
    big = Message(b"big", bytes(range(256)) * (40 << 10), (("h", b"\xff"),))
    messages = [*numbered_messages(1), big, *numbered_messages(1, 1)]
    await publish_all(broker, boxes.source, messages)
    async with broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 3):
            await subscription.settle(claim, Buried(boxes.dead, claim.message))
    await replay_all(broker, boxes)
    for box in (boxes.dead, boxes.target):
        assert [payload(one.message) for one in await read_all(broker, box)] == list(map(payload, messages))


async def test_batches_respect_a_small_limit_of_the_topic(broker: Broker) -> None:
    boxes = await make_limited(broker, fresh_name("small"), 2_000, "target")
    await publish_all(broker, boxes.dead, numbered_messages(200))
    await replay_all(broker, boxes)
    assert await values(broker, boxes.target) == [m.value for m in numbered_messages(200)]


@pytest.mark.parametrize("is_limit_known", [True, False])
async def test_a_refused_message_settles_nothing(broker: Broker, is_limit_known: bool) -> None:
    """A known limit fails before the transaction; with an unknown one the broker refuses in the middle of it."""
    boxes = await make_limited(broker, fresh_name("refused"), 3_000, "target")
    await publish_all(
        broker, boxes.dead, [*numbered_messages(1), Message(b"k", b"x" * 5_000), *numbered_messages(1, 1)]
    )
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        first = CommitBatch(
            progress_of(letters[:1]), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]}
        )
        await writer.commit(first)
        if not is_limit_known:
            writer._producer.topic_limits._known[boxes.target] = TopicLimit(1, 1 << 20)
        batch = CommitBatch(
            progress_of(letters), publications_to(boxes.target, letters[1:]), {SettledAs.Replayed: offsets[1:]}
        )
        with pytest.raises(TooLarge):
            await writer.commit(batch)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
        assert again.progress == first.progress
        assert [again.is_open(offset) for offset in offsets] == [False, True, True]
    assert await values(broker, boxes.target) == [b"v0"]


async def test_a_target_that_is_deleted_during_a_replay_settles_nothing(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("deleted"))
    await publish_all(broker, boxes.dead, numbered_messages(2))
    letters = await read_all(broker, boxes.dead)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        offsets = [one.place.offset for one in letters]
        await writer.commit(
            CommitBatch(
                progress_of(letters), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]}
            )
        )
        await broker.delete([boxes.target])
        with pytest.raises(BrokerError):
            await writer.commit(
                CommitBatch(
                    progress_of(letters), publications_to(boxes.target, letters), {SettledAs.Replayed: offsets[1:]}
                )
            )
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
        assert again.is_open(offsets[1])


@pytest.mark.parametrize("letters_after", [1, 5])
async def test_a_recreated_dead_box_is_refused_until_its_ledger_is_reset(broker: Broker, letters_after: int) -> None:
    boxes = await make_boxes(broker, fresh_name("recreated"))
    await publish_all(broker, boxes.dead, numbered_messages(3))
    await replay_all(broker, boxes)
    await broker.delete([boxes.dead])
    await broker.ensure(BoxSpec(boxes.dead, 1))
    await publish_all(broker, boxes.dead, numbered_messages(letters_after, 100))
    with pytest.raises(BoxRecreated):
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2"):
            pass
    await broker.reset_ledger(boxes.dead, boxes.ledger)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2") as writer:
        assert writer.is_open(0)
    monitor = broker.monitor()
    try:
        found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
        assert not isinstance(found, BrokerError)
        assert found.depth == letters_after
    finally:
        await monitor.close()


async def test_a_corrupt_ledger_is_an_error(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("corrupt"))
    await publish_all(broker, boxes.dead, numbered_messages(1))
    await replay_all(broker, boxes)
    garbage = Message(mark_key(boxes.dead, 0), b"\x01garbage")
    await broker.publish([Publication(boxes.ledger, garbage, Place("outside", 0, 0), 0)])
    with pytest.raises(LedgerCorrupt, match="mark/"):
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2"):
            pass


async def test_published_positions_are_recorded_and_deleted(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("produced"))
    await publish_all(broker, boxes.dead, numbered_messages(3))
    await replay_all(broker, boxes)
    produced = await broker.published_positions(boxes.ledger, "uid-1")
    arrived = await read_all(broker, boxes.target)
    assert len(produced) == 3
    assert all(produced.contains(boxes.target, 0, one.place.offset) for one in arrived)
    assert not produced.contains(boxes.target, 0, 1_000)
    await broker.delete_replay_records(boxes.ledger, "uid-1")
    assert len(await broker.published_positions(boxes.ledger, "uid-1")) == 0


async def test_partitions_that_publish_to_one_target_record_all_positions(broker: Broker) -> None:
    """Partitions 0 and 3 write their records to the same partition of the ledger."""
    boxes, other = await make_boxes(broker, fresh_name("produced"), 4), fresh_name("target")
    await broker.ensure(BoxSpec(other, 1))
    for partition in range(4):
        await publish_all(broker, boxes.dead, numbered_messages(2, 2 * partition), partition)
    letters = await read_all(broker, boxes.dead)
    async with contextlib.AsyncExitStack() as stack:
        writers = [
            await stack.enter_async_context(broker.partition_writer(boxes.dead, boxes.ledger, partition, "uid-1"))
            for partition in range(4)
        ]
        for one in sorted(letters, key=lambda one: one.place.offset):
            batch = CommitBatch(
                progress_of([one]), publications_to(other, [one]), {SettledAs.Replayed: [one.place.offset]}
            )
            await writers[one.place.partition].commit(batch)
    produced = await broker.published_positions(boxes.ledger, "uid-1")
    assert all(produced.contains(other, 0, one.place.offset) for one in await read_all(broker, other))
    assert len(produced) == 8


async def test_progress_without_letters_is_committed(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("progress"))
    progress = PartitionProgress(Span(0, 0, 10), now_ms(), 5, scanned=5, skipped={"LoopCap": 2}, samples=("0-1",))
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        await writer.commit(CommitBatch(progress))
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        assert writer.progress == progress
