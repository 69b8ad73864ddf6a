"""The committer of a partition: letters are gathered for longer than deliveries, and keep nobody waiting."""

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from deadletter.brokers.kafka.subscription import committer
from deadletter.brokers.kafka.subscription.committer import PartitionCommitter, PendingSettlement
from deadletter.brokers.types import Buried, Claim, Delivered, Settlement
from deadletter.core.letters import Message, Place


class Log:
    """A partition in memory that remembers what was written together."""

    is_ours = True

    def __init__(self) -> None:
        self.written: list[list[int]] = []

    def may_wait(self, verdict: PendingSettlement) -> bool:
        return isinstance(verdict.settlement, Buried)

    async def write(self, verdicts: Sequence[PendingSettlement]) -> None:
        self.written.append([verdict.offset for verdict in verdicts])

    async def recover(self) -> None: ...

    async def write_notes(self) -> None: ...

    def is_settled(self, offset: int) -> bool:
        return any(offset in batch for batch in self.written)


LETTER: Settlement = Buried("dead", Message(None, b"v"))


def claim(offset: int) -> Claim:
    return Claim(Place("orders", 0, offset), Message(None, b"v"))


@pytest.fixture
async def log():
    return Log()


async def settle(made: PartitionCommitter, offset: int, how: Settlement) -> "asyncio.Future[None]":
    """Ask for it; it is in the committer's hands when this returns."""
    asked = asyncio.ensure_future(made.settle(claim(offset), how))
    await asyncio.sleep(0)
    return asked


async def test_what_was_delivered_does_not_wait_for_letters_and_letters_wait_for_each_other(log: Log):
    with patch.object(committer, "LETTER_BATCH_INTERVAL_S", 3600.0):
        made = PartitionCommitter(log)
        await made.settle(claim(0), LETTER)  # the first one in a while does not wait
        waiting = [await settle(made, offset, LETTER) for offset in (1, 2)]
        await made.settle(claim(3), Delivered())
        await made.settle(claim(4), Delivered())
        assert log.written == [[0], [3], [4]]
        await made.close(flush=True)  # nothing is left behind
        await asyncio.gather(*waiting)
    assert log.written == [[0], [3], [4], [1, 2]]


async def test_letters_are_written_when_their_time_has_come_though_nothing_else_happens(log: Log):
    with patch.object(committer, "LETTER_BATCH_INTERVAL_S", 0.2):
        made = PartitionCommitter(log)
        await made.settle(claim(0), LETTER)
        await asyncio.wait_for(made.settle(claim(1), LETTER), 60)
        await made.close(flush=True)
    assert log.written == [[0], [1]]


async def test_many_letters_wait_for_no_more(log: Log):
    with patch.object(committer, "LETTER_BATCH_INTERVAL_S", 3600.0), patch.object(committer, "MANY_LETTERS", 3):
        made = PartitionCommitter(log)
        await made.settle(claim(0), LETTER)
        waiting = [await settle(made, offset, LETTER) for offset in (1, 2, 3)]
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert log.written == [[0], [1, 2, 3]]
        await made.close(flush=True)
