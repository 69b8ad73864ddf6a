"""Write one box partition in memory. A batch is checked as a whole before anything is written."""

from deadletter.brokers.errors import BoxRecreated, Fenced
from deadletter.brokers.memory.server import MemoryLedger, MemoryServer
from deadletter.brokers.types import CommitBatch
from deadletter.core.replay_progress import PartitionProgress, SettledAs


class MemoryPartitionWriter:
    """Implements `contract.PartitionWriter`."""

    def __init__(self, server: MemoryServer, box: str, ledger: str, partition: int, uid: str, archived: bool) -> None:
        self._server, self._box, self._ledger_name = server, box, ledger
        self._partition, self._uid, self._archived = partition, uid, archived
        self._generation = server.get_box(box).generation
        if self._ledger.generations.get((box, partition), self._generation) != self._generation:
            raise BoxRecreated(f"box {box} was deleted and created again; its ledger refers to letters of the old box")
        server.epochs[box, partition] += 1
        self._epoch: int | None = server.epochs[box, partition]

    @property
    def _ledger(self) -> MemoryLedger:
        return self._server.ledgers[self._ledger_name]

    @property
    def progress(self) -> PartitionProgress | None:
        """Progress that an earlier writer of the same Replay has committed."""
        return self._ledger.progress.get(self._uid, {}).get(self._partition)

    def is_open(self, offset: int) -> bool:
        """True if the letter is not settled; with `archived`, if it is archived."""
        if self._archived:
            return offset in self._ledger.settled[self._box, self._partition].get(SettledAs.Archived, ())
        return not self._ledger.is_settled(self._box, self._partition, offset)

    async def commit(self, batch: CommitBatch) -> None:
        """Write the whole batch or nothing."""
        self._server.raise_if_down()
        if self._epoch != self._server.epochs[self._box, self._partition]:
            raise Fenced(f"another writer has taken over partition {self._partition} of {self._box}")
        epoch, self._epoch = self._epoch, None  # a writer whose commit fails cannot be used again
        for publication in batch.publications:
            self._server.writable_box(publication.to, publication.message)
        self._write(batch)
        self._epoch = epoch

    def _write(self, batch: CommitBatch) -> None:
        published = self._ledger.published.setdefault(self._uid, set())
        published.update(self._server.publish(publication) for publication in batch.publications)
        for why, offsets in batch.settled.items():
            for offset in offsets:
                self._ledger.settle(self._box, self._partition, why, offset)
                self._ledger.generations[self._box, self._partition] = self._generation
        if batch.selected:
            self._ledger.selected.setdefault(self._uid, {}).setdefault(self._partition, set()).update(batch.selected)
        self._ledger.progress.setdefault(self._uid, {})[self._partition] = batch.progress
