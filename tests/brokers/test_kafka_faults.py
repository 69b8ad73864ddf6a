"""What only Kafka can do to us: topics made anew, refusals inside a transaction, corrupt ledgers, rebalances."""

import asyncio
import contextlib
import time
from collections import Counter

import pytest
from aiokafka import TopicPartition

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.errors import (
    BoxConflict,
    BoxRecreated,
    BrokerError,
    BrokerUnreachable,
    Fenced,
    LedgerCorrupt,
    TooLarge,
    Undecodable,
)
from deadletter.brokers.kafka.record_batches import TopicLimit
from deadletter.brokers.kafka.subscription.retry_partition import RetryPartition
from deadletter.brokers.types import Buried, Claim, CommitBatch, Delivered, Parked, Publication, StoredMessage
from deadletter.clock import now_ms
from deadletter.core.boxes import BoxSpec, BoxStats
from deadletter.core.ledger.records import mark_key
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from tests.bed import beds
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.corrupting import CORRUPTIONS, Corruption, corrupt_batch
from tests.brokers.helpers import (
    TIMEOUT_S,
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
    settle_all,
    values,
)

BROKER = "kafka"


async def make_limited(broker: Broker, source: str, limit: int, *names: str) -> Boxes:
    """Boxes of which the named ones take messages of so many bytes; set as they are made, so it holds at once."""
    boxes = box_names(source)
    for name in names:
        config = {"max.message.bytes": str(limit)}
        await broker.ensure(BoxSpec(getattr(boxes, name), 1, config=config))
    return await make_boxes(broker, source)


async def replay_all(broker: Broker, boxes: Boxes) -> None:
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        await mover.commit(
            CommitBatch(progress_of(letters), publications_to(boxes.target, letters), {SettledAs.Replayed: offsets})
        )


async def test_partitions_only_grow(broker: Broker) -> None:
    name = fresh_name("grow")
    await broker.ensure(BoxSpec(name, 1))
    assert (await broker.ensure(BoxSpec(name, 3))).partitions == 3
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(name, 2))


async def test_configs_of_others_are_not_reset(broker: Broker) -> None:
    name = fresh_name("configs")
    await broker.ensure(BoxSpec(name, 1, config={"max.message.bytes": "2000000"}))
    await broker.ensure(BoxSpec(name, 1, retention_ms=86_400_000))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        state = (await broker.describe([name]))[name]
        if (state.retention_ms, state.max_message_bytes) == (86_400_000, 2_000_000):
            break
        assert time.monotonic() < deadline, state
        await asyncio.sleep(0.1)


async def test_a_config_the_broker_refuses_is_a_conflict(broker: Broker) -> None:
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(fresh_name("configs"), 1, config={"no.such.config": "1"}))


async def test_ten_megabytes_come_back_byte_for_byte(broker: Broker) -> None:
    boxes = await make_limited(broker, fresh_name("large"), 12 << 20, "source", "dead", "target")
    big = Message(b"big", bytes(range(256)) * (40 << 10), (("h", b"\xff"),))
    laid = [*numbered_messages(1), big, *numbered_messages(1, 1)]
    await publish_all(broker, boxes.source, laid)
    async with broker.subscribe(boxes.subscription()) as desk:
        for claim in await claim_some(desk, 3):
            await desk.settle(claim, Buried(boxes.dead, claim.message))
    await replay_all(broker, boxes)
    for box in (boxes.dead, boxes.target):
        assert [payload(one.message) for one in await read_all(broker, box)] == list(map(payload, laid))


async def test_small_limits_get_small_batches(broker: Broker) -> None:
    boxes = await make_limited(broker, fresh_name("small"), 2_000, "target")
    await publish_all(broker, boxes.dead, numbered_messages(200))
    await replay_all(broker, boxes)
    assert await values(broker, boxes.target) == [m.value for m in numbered_messages(200)]


@pytest.mark.parametrize("known", [True, False])
async def test_a_refused_message_settles_nothing(broker: Broker, known: bool) -> None:
    """Known: the limit shows before the transaction; else the broker refuses in the middle of it."""
    boxes = await make_limited(broker, fresh_name("refused"), 3_000, "target")
    await publish_all(broker, boxes.dead, [*numbered_messages(1), Message(b"k", b"x" * 5_000), *numbered_messages(1, 1)])
    letters = await read_all(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        first = CommitBatch(
            progress_of(letters[:1]), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]}
        )
        await mover.commit(first)
        if not known:
            mover._producer.topic_limits._known[boxes.target] = TopicLimit(1, 1 << 20)
        step = CommitBatch(progress_of(letters), publications_to(boxes.target, letters[1:]), {SettledAs.Replayed: offsets[1:]})
        with pytest.raises(TooLarge):
            await mover.commit(step)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
        assert again.progress == first.progress
        assert [again.is_open(offset) for offset in offsets] == [False, True, True]
    assert await values(broker, boxes.target) == [b"v0"]


async def test_a_target_deleted_under_our_hands_settles_nothing(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("deleted"))
    await publish_all(broker, boxes.dead, numbered_messages(2))
    letters = await read_all(broker, boxes.dead)
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        offsets = [one.place.offset for one in letters]
        await mover.commit(
            CommitBatch(progress_of(letters), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]})
        )
        await broker.delete([boxes.target])
        with pytest.raises(BrokerError):
            await mover.commit(
                CommitBatch(progress_of(letters), publications_to(boxes.target, letters), {SettledAs.Replayed: offsets[1:]})
            )
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
        assert again.is_open(offsets[1])


@pytest.mark.parametrize("letters_after", [1, 5])
async def test_a_recreated_box_stops_us_until_a_human_decides(broker: Broker, letters_after: int) -> None:
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
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2") as mover:
        assert mover.is_open(0)
    registers = broker.monitor()
    try:
        found = (await registers.sweep([boxes.monitored], now_ms()))[boxes.dead]
        assert not isinstance(found, BrokerError)
        assert found.depth == letters_after
    finally:
        await registers.close()


async def test_a_corrupt_ledger_is_never_an_empty_one(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("corrupt"))
    await publish_all(broker, boxes.dead, numbered_messages(1))
    await replay_all(broker, boxes)
    garbage = Message(mark_key(boxes.dead, 0), b"\x01garbage")
    await broker.publish([Publication(boxes.ledger, garbage, Place("outside", 0, 0), 0)])
    with pytest.raises(LedgerCorrupt, match="mark/"):
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2"):
            pass


@pytest.mark.parametrize("change", CORRUPTIONS, ids=lambda change: change.__name__)
async def test_a_dead_box_that_nobody_can_decode_hides_no_other(broker: Broker, bed: beds.Bed, change: Corruption) -> None:
    broken, sound = await make_boxes(broker, fresh_name("broken")), await make_boxes(broker, fresh_name("sound"))
    await publish_all(broker, broken.dead, [*numbered_messages(2), Message(b"k", b"poison", (("header-name", b"v"),))])
    await publish_all(broker, sound.dead, numbered_messages(2))
    (log,) = (bed.directory / "kafka" / "log").glob(f"{broken.dead}-0/*.log")
    corrupt_batch(log, change)
    registers = broker.monitor()
    try:
        found = await registers.sweep([broken.monitored, sound.monitored], now_ms())
    finally:
        await registers.close()
    assert isinstance(found[broken.dead], Undecodable)
    assert isinstance(found[sound.dead], BoxStats)
    assert found[sound.dead].depth == 2


async def test_what_was_produced_is_known_by_its_place(broker: Broker) -> None:
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


async def test_partitions_that_publish_to_one_place_hide_nothing_from_each_other(broker: Broker) -> None:
    """Partitions 0 and 3 keep their records in the same partition of the ledger."""
    boxes, other = await make_boxes(broker, fresh_name("produced"), 4), fresh_name("target")
    await broker.ensure(BoxSpec(other, 1))
    for partition in range(4):
        await publish_all(broker, boxes.dead, numbered_messages(2, 2 * partition), partition)
    letters = await read_all(broker, boxes.dead)
    async with contextlib.AsyncExitStack() as stack:
        movers = [
            await stack.enter_async_context(broker.partition_writer(boxes.dead, boxes.ledger, partition, "uid-1"))
            for partition in range(4)
        ]
        for one in sorted(letters, key=lambda one: one.place.offset):
            step = CommitBatch(progress_of([one]), publications_to(other, [one]), {SettledAs.Replayed: [one.place.offset]})
            await movers[one.place.partition].commit(step)
    produced = await broker.published_positions(boxes.ledger, "uid-1")
    assert all(produced.contains(other, 0, one.place.offset) for one in await read_all(broker, other))
    assert len(produced) == 8


async def test_a_sweep_reads_many_queues_with_many_partitions(broker: Broker) -> None:
    queues = [await make_boxes(broker, fresh_name("many"), partitions=3) for _ in range(5)]
    for count, boxes in enumerate(queues):
        for partition in range(3):
            await publish_all(broker, boxes.dead, numbered_messages(count), partition)
    registers = broker.monitor()
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = await registers.sweep([boxes.monitored for boxes in queues], now_ms())
            readings = [found[boxes.dead] for boxes in queues]
            depths = [-1 if isinstance(one, BrokerError) else one.depth for one in readings]
            if depths == [0, 3, 6, 9, 12]:
                break
            assert time.monotonic() < deadline, depths
        await registers.sweep([], now_ms())
    finally:
        await registers.close()


async def test_a_tally_alone_is_kept_too(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("tally"))
    tally = PartitionProgress(Span(0, 0, 10), now_ms(), 5, scanned=5, skipped={"LoopCap": 2}, samples=("0-1",))
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        await mover.commit(CommitBatch(tally))
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        assert mover.progress == tally


async def test_a_too_large_letter_hinders_no_other(broker: Broker) -> None:
    boxes = await make_limited(broker, fresh_name("toolarge"), 3_000, "dead")
    await publish_all(broker, boxes.source, numbered_messages(3))
    async with broker.subscribe(boxes.subscription()) as desk:
        claims = await claim_some(desk, 3)
        large = Message(b"k", b"x" * 5_000)
        settled = await asyncio.gather(
            desk.settle(claims[0], Buried(boxes.dead, claims[0].message)),
            desk.settle(claims[1], Buried(boxes.dead, large)),
            desk.settle(claims[2], Buried(boxes.dead, claims[2].message)),
            return_exceptions=True,
        )
        assert [type(one) for one in settled] == [type(None), TooLarge, type(None)]
        await desk.settle(claims[1], Delivered())
    assert await values(broker, boxes.dead) == [b"v0", b"v2"]


async def test_due_letters_of_one_partition_are_not_forgotten_over_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("due"), partitions=2)
    for partition in range(2):
        await publish_all(broker, boxes.source, numbered_messages(1, partition), partition)
    read, asked = RetryPartition._read_letters, list[int]()

    async def failing(self: RetryPartition, offsets: list[int]) -> list[StoredMessage]:
        asked.extend(offsets)
        if len(asked) == 2:
            monkeypatch.undo()
            raise BrokerUnreachable("it went away")
        return await read(self, offsets)

    async with broker.subscribe(boxes.subscription()) as desk:
        for claim in await claim_some(desk, 2):
            await desk.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while desk.parked_letters < 2:
                await desk.claim(1)
        for work in desk._assignment.partitions.values():  # type: ignore[attr-defined]
            work._schedule = [(0, *one[1:]) for one in getattr(work, "_schedule", ())]  # their time has come
        monkeypatch.setattr(RetryPartition, "_read_letters", failing)
        due = list[Claim]()
        with contextlib.suppress(BrokerUnreachable):
            due += await desk.claim(2)
        due += await claim_some(desk, 2 - len(due), patience=20)
        assert sorted(claim.message.value or b"" for claim in due) == [b"v0", b"v1"]
        await settle_all(desk, due)


async def test_a_letter_settled_by_another_is_not_kept(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("kept"))
    await publish_all(broker, boxes.source, numbered_messages(1))
    async with broker.subscribe(boxes.subscription()) as desk:
        (claim,) = await claim_some(desk, 1)
        await desk.settle(claim, Parked(claim.message, now_ms() + 3_600_000))
        async with asyncio.timeout(TIMEOUT_S):
            while not desk.parked_letters:
                await desk.claim(1)
        work = desk._assignment.partitions[TopicPartition(boxes.retry, 0)]  # type: ignore[attr-defined]
        work._settled.add(SettledAs.Delivered, work._open)
        assert await work.due(now_ms() + 7_200_000, 10, 1 << 20) == []
        assert (len(work._payloads), work._payloads.bytes, len(work._open)) == (0, 0, 0)


async def test_two_desks_share_the_work_and_settle_each_message_once(kafka: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("share"), partitions=4)
    for partition in range(4):
        await publish_all(broker, boxes.source, numbered_messages(50, partition * 50), partition)
    settled: Counter[bytes | None] = Counter()
    async with broker.subscribe(boxes.subscription("pod-0")) as first:
        held = await claim_some(first, 20)
        async with (
            open_broker(kafka_at(kafka), no_secrets, LOOPBACK) as other,
            other.subscribe(boxes.subscription("pod-1")) as second,
        ):
            await asyncio.gather(work(first, settled), work(second, settled))
        assert not any(first.holds(claim) for claim in held)
        with pytest.raises(Fenced):
            await first.settle(held[0], Delivered())
    assert sorted(settled.elements()) == sorted(f"v{n}".encode() for n in range(200))


async def work(desk: Subscription, settled: Counter[bytes | None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while settled.total() < 200:
        assert time.monotonic() < deadline, f"only {len(settled)} of 200"
        claims = await desk.claim(20)
        outcomes = await asyncio.gather(*(desk.settle(one, Delivered()) for one in claims), return_exceptions=True)
        for claim, outcome in zip(claims, outcomes, strict=True):
            assert outcome is None or isinstance(outcome, Fenced)
            settled[claim.message.value] += outcome is None


async def test_nobody_answers(broker: Broker) -> None:
    async with open_broker(kafka_at("127.0.0.1:9"), no_secrets, LOOPBACK) as nobody:
        with pytest.raises(BrokerUnreachable):
            await nobody.server_info()


async def test_the_guard_keeps_us_from_addresses_that_settings_do_not_allow() -> None:
    async with open_broker(kafka_at("127.0.0.1:9"), no_secrets, ()) as guarded:
        with pytest.raises(BrokerUnreachable, match="may dial"):
            await guarded.server_info()
