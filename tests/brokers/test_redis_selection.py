"""Selections on Redis: order, slices, and memory of a few bytes per letter."""

import tracemalloc
from random import Random
from struct import pack

import pytest
from redis.asyncio import Redis

from deadletter.brokers.contract import Broker
from deadletter.brokers.redis import keys
from deadletter.brokers.redis.ledger import PackedSelection, pack_offsets
from deadletter.brokers.types import CommitBatch
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress, Span
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import make_boxes

BROKER = "redis"
COUNT, STEP, MAX_BYTES_PER_LETTER = 100_000, 10_000, 64
OFFSETS = [Place.from_entry_id("", f"{1_700_000_000_000 + n // 3}-{n % 3}").offset for n in range(COUNT)]


async def test_a_selection_is_ordered_and_takes_a_few_bytes_per_letter(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("selection"))
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        for at in range(0, COUNT, STEP):
            progress = PartitionProgress(Span(0, OFFSETS[0], OFFSETS[-1] + 1), 0, OFFSETS[at])
            await writer.commit(CommitBatch(progress, selected=OFFSETS[at : at + STEP]))
    tracemalloc.start()
    try:
        found = (await broker.selected_offsets(boxes.ledger, "uid-1"))[0]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / COUNT < MAX_BYTES_PER_LETTER
    assert len(found) == COUNT
    assert list(found) == OFFSETS
    assert all(offset in found for offset in (OFFSETS[0], OFFSETS[50_000], OFFSETS[-1]))
    assert all(other not in found for other in (0, OFFSETS[0] - 1, OFFSETS[7] + 3, OFFSETS[-1] + 1, "x", -1, 1 << 200))


async def test_an_unordered_selection_with_duplicates_is_sorted(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("selection"))
    mixed = [*OFFSETS[:200], *OFFSETS[100:200]]
    Random(7).shuffle(mixed)
    for offset in mixed:
        packed = pack(">QQ", offset >> 64, offset & ((1 << 64) - 1))
        await client.rpush(keys.selected(boxes.ledger, "uid-1"), packed)
    found = (await broker.selected_offsets(boxes.ledger, "uid-1"))[0]
    assert list(found) == OFFSETS[:200]
    assert OFFSETS[150] in found


def test_a_selection_is_sliced_like_a_list() -> None:
    offsets = OFFSETS[:10]
    found = PackedSelection(pack_offsets(offsets))
    for part in (slice(3, None), slice(None, 4), slice(-2, None), slice(7, 3), slice(99), slice(2, 5)):
        assert list(found[part]) == offsets[part]
    assert (found[0], found[-1]) == (offsets[0], offsets[-1])
    with pytest.raises(IndexError):
        found[10]


async def test_a_dry_run_that_selected_nothing_has_no_selection(broker: Broker) -> None:
    assert await broker.selected_offsets(fresh_name("ledger"), "uid-1") == {}
