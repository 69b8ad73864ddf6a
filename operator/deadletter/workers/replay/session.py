"""The seat of one partition: its mover, taken when needed, and taken anew after an error."""

from contextlib import AsyncExitStack
from typing import Protocol

from deadletter.brokers.contract import Broker, Offsets, PartitionWriter
from deadletter.brokers.types import CommitBatch
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers.replay.meter import Meter


class PartitionSession(Protocol):
    """Where one partition is worked on; `tally` is what is durable, None before the window is frozen."""

    partition: int
    progress: PartitionProgress | None

    async def open(self) -> None:
        """Be ready to commit, with the tally as the ledger has it."""

    def is_takeable(self, offset: int) -> bool:
        """May the letter be taken?"""

    async def commit(self, step: CommitBatch) -> None:
        """All of it or nothing; after an error the seat must be opened again."""

    async def close(self) -> None:
        """Let go."""


class WritingSession:
    """A seat that settles: it holds the one mover of its partition."""

    def __init__(
        self, broker: Broker, box: str, ledger: str, partition: int, uid: str, archived: bool, meter: Meter
    ) -> None:
        self.partition = partition
        self._meter = meter
        self.progress: PartitionProgress | None = None
        self._broker = broker
        self._asked = (box, ledger, partition, uid, archived)
        self._stack = AsyncExitStack()
        self._mover: PartitionWriter | None = None

    async def open(self) -> None:
        """Take the mover, unless it is held; what it has counted is the truth."""
        if self._mover is None:
            self._mover = await self._stack.enter_async_context(self._broker.partition_writer(*self._asked))
            self.progress = self._mover.progress

    def is_takeable(self, offset: int) -> bool:
        """Not settled yet, or archived when that is asked for."""
        return self._mover is not None and self._mover.is_open(offset)

    async def commit(self, step: CommitBatch) -> None:
        """Commit; on any error the mover is given up."""
        await self.open()
        if self._mover is None:
            return
        try:
            await self._mover.commit(step)
        except BaseException:
            await self.close()
            raise
        self._meter(self.progress, step.progress)
        self.progress = step.progress

    async def close(self) -> None:
        """Give up the mover."""
        self._mover = None
        await self._stack.aclose()


class ReadOnlySession:
    """A seat without any right to write: what it counts is only in memory."""

    def __init__(self, partition: int, settled: Offsets | None) -> None:
        self.partition = partition
        self.progress: PartitionProgress | None = None
        self._settled = settled

    async def open(self) -> None:
        """Nothing to take."""

    def is_takeable(self, offset: int) -> bool:
        """Not settled, as the ledger said at the beginning."""
        return self._settled is None or offset not in self._settled

    async def commit(self, step: CommitBatch) -> None:
        """Remember the tally."""
        self.progress = step.progress

    async def close(self) -> None:
        """Nothing to give up."""
