"""The settlement writer of a partition: letters are gathered for longer than deliveries, and never delay them."""

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from deadletter.brokers.errors import TooLarge
from deadletter.brokers.kafka.subscription import settlement_writer
from deadletter.brokers.kafka.subscription.settlement_writer import PendingSettlement, SettlementWriter
from deadletter.brokers.types import Buried, Claim, Delivered, Settlement
from deadletter.core.letters import Message, Place


class MemoryStore:
    """A partition in memory that records which offsets were written together."""

    is_assigned = True

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.refused: set[int] = set()
        self.tried: list[list[int]] = []
        self.has_refused = asyncio.Event()
        self.has_written_attempts = asyncio.Event()

    def may_be_delayed(self, pending: PendingSettlement) -> bool:
        return isinstance(pending.settlement, Buried)

    async def write(self, settlements: Sequence[PendingSettlement]) -> None:
        offsets = [pending.offset for pending in settlements]
        self.tried.append(offsets)
        if self.refused & set(offsets):
            self.has_refused.set()
            await asyncio.sleep(0)  # whoever waits for the refusal settles something now
            await asyncio.sleep(0)
            raise TooLarge("the message is too large")
        self.written.append(offsets)

    async def recover(self) -> None: ...

    async def write_attempts(self) -> None:
        self.has_written_attempts.set()

    def is_settled(self, offset: int) -> bool:
        return any(offset in batch for batch in self.written)


LETTER: Settlement = Buried("dead", Message(None, b"v"))


def claim(offset: int) -> Claim:
    return Claim(Place("orders", 0, offset), Message(None, b"v"))


@pytest.fixture
async def store():
    return MemoryStore()


async def start_settling(made: SettlementWriter, offset: int, settlement: Settlement) -> "asyncio.Future[None]":
    """Settle a claim in a task; the settlement writer has it when this returns."""
    task = asyncio.ensure_future(made.settle(claim(offset), settlement))
    await asyncio.sleep(0)
    return task


async def test_letters_wait_for_each_other_and_deliveries_do_not_wait_for_letters(store: MemoryStore):
    with patch.object(settlement_writer, "LETTER_BATCH_INTERVAL_S", 3600.0):
        made = SettlementWriter(store)
        await made.settle(claim(0), LETTER)  # the first letter after a while does not wait
        waiting = [await start_settling(made, offset, LETTER) for offset in (1, 2)]
        await made.settle(claim(3), Delivered())
        await made.settle(claim(4), Delivered())
        assert store.written == [[0], [3], [4]]
        await made.close(flush=True)
        await asyncio.gather(*waiting)
    assert store.written == [[0], [3], [4], [1, 2]]


async def test_letters_are_written_after_their_interval_although_nothing_else_is_settled(store: MemoryStore):
    with patch.object(settlement_writer, "LETTER_BATCH_INTERVAL_S", 0.2):
        made = SettlementWriter(store)
        await made.settle(claim(0), LETTER)
        await asyncio.wait_for(made.settle(claim(1), LETTER), 60)
        await made.close(flush=True)
    assert store.written == [[0], [1]]


async def test_many_letters_are_not_delayed(store: MemoryStore):
    with (
        patch.object(settlement_writer, "LETTER_BATCH_INTERVAL_S", 3600.0),
        patch.object(settlement_writer, "MANY_LETTERS", 3),
    ):
        made = SettlementWriter(store)
        await made.settle(claim(0), LETTER)
        waiting = [await start_settling(made, offset, LETTER) for offset in (1, 2, 3)]
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert store.written == [[0], [1, 2, 3]]
        await made.close(flush=True)


async def test_a_settlement_that_its_box_refuses_is_written_alone_from_then_on(store: MemoryStore):
    store.refused = {1}
    made = SettlementWriter(store)
    await made.settle(claim(0), LETTER)
    with pytest.raises(TooLarge):
        await made.settle(claim(1), LETTER)
    tasks = [await start_settling(made, offset, Delivered()) for offset in (1, 2, 3)]
    await asyncio.wait(tasks, timeout=60)
    assert [type(task.exception()) for task in tasks] == [TooLarge, type(None), type(None)]
    assert store.written == [[0], [2, 3]]
    store.refused = set()
    await made.settle(claim(1), Delivered())
    await made.close(flush=True)
    assert store.written == [[0], [2, 3], [1]]


async def test_refused_settlements_take_turns_with_all_others(store: MemoryStore):
    store.refused = {1, 2, 3}
    made = SettlementWriter(store)
    for offset in store.refused:
        with pytest.raises(TooLarge):
            await made.settle(claim(offset), Delivered())
    store.tried.clear()
    store.has_refused.clear()
    tasks = [await start_settling(made, offset, Delivered()) for offset in (1, 2, 3)]
    await asyncio.wait_for(store.has_refused.wait(), 60)
    await asyncio.wait_for(made.settle(claim(4), Delivered()), 60)
    await asyncio.wait(tasks, timeout=60)
    assert store.tried == [[1], [4], [2], [3]]
    await made.close(flush=True)


async def test_attempts_are_written_after_a_write_that_failed(store: MemoryStore):
    store.refused = {1}
    made = SettlementWriter(store)
    made.write_attempts_soon()
    with pytest.raises(TooLarge):
        await made.settle(claim(1), Delivered())
    assert not store.has_written_attempts.is_set()
    made._wake.set()
    await asyncio.wait_for(store.has_written_attempts.wait(), 60)
    await made.close(flush=True)
