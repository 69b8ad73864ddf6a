"""The settler of one box partition, in memory: a step is checked whole, then done whole."""

from collections.abc import Iterator

from deadletter.brokers.errors import BoxRecreated, Fenced
from deadletter.brokers.memory.server import MemoryLedger, MemoryServer
from deadletter.brokers.types import CommitBatch
from deadletter.core.replay_progress import PartitionProgress, SettledAs


class MemoryPartitionWriter:
    """Keeps the contract of `base.Mover`."""

    def __init__(self, server: MemoryServer, box: str, ledger: str, partition: int, uid: str, archived: bool) -> None:
        self._server, self._box, self._ledger_name = server, box, ledger
        self._partition, self._uid, self._archived = partition, uid, archived
        self._generation = server.get_box(box).generation
        if self._ledger.generations.get((box, partition), self._generation) != self._generation:
            raise BoxRecreated(f"box {box} was deleted and made again; its ledger speaks of other letters")
        server.epochs[box, partition] += 1
        self._epoch: int | None = server.epochs[box, partition]

    @property
    def _ledger(self) -> MemoryLedger:
        return self._server.ledgers[self._ledger_name]

    @property
    def progress(self) -> PartitionProgress | None:
        """What an earlier mover of the same Replay had counted."""
        return self._ledger.progress.get(self._uid, {}).get(self._partition)

    def is_open(self, offset: int) -> bool:
        """Not settled; or archived, when archived letters are asked for."""
        if self._archived:
            return offset in self._ledger.settled[self._box, self._partition].get(SettledAs.Archived, ())
        return not self._ledger.is_settled(self._box, self._partition, offset)

    async def commit(self, batch: CommitBatch) -> None:
        """All of it or nothing."""
        self._server.raise_if_down()
        if self._epoch != self._server.epochs[self._box, self._partition]:
            raise Fenced(f"another settler took over partition {self._partition} of {self._box}")
        epoch, self._epoch = self._epoch, None  # spent, unless it goes well
        for publication in batch.publications:
            self._server.writable_box(publication.to, publication.message)
        self._write(batch)
        self._epoch = epoch

    def _write(self, step: CommitBatch) -> None:
        produced = self._ledger.published.setdefault(self._uid, set())
        produced.update(self._server.publish(publication) for publication in step.publications)
        for why, offset in _pairs(step):
            self._ledger.settle(self._box, self._partition, why, offset)
            self._ledger.generations[self._box, self._partition] = self._generation
        if step.selected:
            self._ledger.selected.setdefault(self._uid, {}).setdefault(self._partition, set()).update(step.selected)
        self._ledger.progress.setdefault(self._uid, {})[self._partition] = step.progress


def _pairs(step: CommitBatch) -> Iterator[tuple[SettledAs, int]]:
    return ((why, offset) for why, offsets in step.settled.items() for offset in offsets)
