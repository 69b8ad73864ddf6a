"""Sessions give a Replay access to one partition of the dead box and hold its progress there.

A WritingSession owns the only writer of its partition; it opens the writer when needed, and again after an error.
A ReadOnlySession is for boxes that are only observed: it keeps the progress in memory.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.contract import Broker, Offsets, PartitionWriter
from deadletter.brokers.types import CommitBatch
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers import metrics

ProgressRecorder = Callable[[PartitionProgress | None, PartitionProgress], None]


def _counts_by_result(progress: PartitionProgress | None) -> dict[str, int]:
    if progress is None:
        return {}
    return {
        "replayed": progress.replayed,
        "archived": progress.archived,
        "discarded": progress.discarded,
        "skipped": sum(progress.skipped.values()),
        "failedAgain": progress.failed_again,
    }


def metrics_recorder(assignment: ReplayAssignment) -> ProgressRecorder:
    """Return a function that adds the difference between two durable states of the progress to the metrics."""
    labels = (assignment.namespace, assignment.name, assignment.queue)

    def record(before: PartitionProgress | None, after: PartitionProgress) -> None:
        known = _counts_by_result(before)
        for result, letters in _counts_by_result(after).items():
            metrics.REPLAY_LETTERS.labels(*labels, result).inc(max(0, letters - known.get(result, 0)))

    return record


class PartitionSession(Protocol):
    """Access to one partition; `progress` is the durable progress, None before the window is frozen."""

    partition: int
    progress: PartitionProgress | None

    async def open(self) -> None:
        """Prepare for commits and load the progress from the ledger."""

    def is_takeable(self, offset: int) -> bool:
        """True if the letter at this offset may be replayed."""

    async def commit(self, batch: CommitBatch) -> None:
        """Commit the whole batch or nothing; after an error the session must be opened again."""

    async def close(self) -> None:
        """Release the partition."""


class WritingSession:
    """A session that publishes and settles letters through the partition's writer."""

    def __init__(
        self,
        broker: Broker,
        box: str,
        ledger: str,
        partition: int,
        uid: str,
        reads_archive: bool,
        record: ProgressRecorder,
    ) -> None:
        self.partition = partition
        self.progress: PartitionProgress | None = None
        self._record = record
        self._broker = broker
        self._writer_arguments = (box, ledger, partition, uid, reads_archive)
        self._stack = AsyncExitStack()
        self._writer: PartitionWriter | None = None

    async def open(self) -> None:
        """Open the writer unless it is open; its progress replaces ours."""
        if self._writer is None:
            self._writer = await self._stack.enter_async_context(self._broker.partition_writer(*self._writer_arguments))
            self.progress = self._writer.progress

    def is_takeable(self, offset: int) -> bool:
        """True if the letter is not settled, or is archived when the Replay restores archived letters."""
        return self._writer is not None and self._writer.is_open(offset)

    async def commit(self, batch: CommitBatch) -> None:
        """Commit the batch; on any error close the writer, which is unusable afterwards."""
        await self.open()
        if self._writer is None:
            return
        try:
            await self._writer.commit(batch)
        except BaseException:
            await self.close()
            raise
        self._record(self.progress, batch.progress)
        self.progress = batch.progress

    async def close(self) -> None:
        """Close the writer."""
        self._writer = None
        await self._stack.aclose()


class ReadOnlySession:
    """A session that writes nothing; the progress is kept in memory and lost with the pod."""

    def __init__(self, partition: int, settled: Offsets | None) -> None:
        self.partition = partition
        self.progress: PartitionProgress | None = None
        self._settled = settled

    async def open(self) -> None:
        """Do nothing: there is no writer."""

    def is_takeable(self, offset: int) -> bool:
        """True if the letter was not settled when the Replay began."""
        return self._settled is None or offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """Remember the progress."""
        self.progress = batch.progress

    async def close(self) -> None:
        """Do nothing: there is no writer."""
