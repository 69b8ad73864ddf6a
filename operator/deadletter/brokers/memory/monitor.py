"""Count the letters of boxes in memory. Each sweep counts all of them again."""

from collections.abc import Mapping, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.memory.server import MemoryBox, MemoryLedger, MemoryServer
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker
from deadletter.core.letter_index import LetterIndex
from deadletter.core.letters import Place


class MemoryMonitor:
    """Implements `contract.BoxMonitor`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._heartbeats: dict[str, HeartbeatTracker] = {}

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """Return for each dead box its statistics or its error."""
        return {box.dead: self._stats_or_error(box, now) for box in boxes}

    def _stats_or_error(self, monitored: MonitoredBox, now: int) -> BoxStats | BrokerError:
        try:
            return self._stats(monitored, now)
        except BrokerError as error:
            return error

    def _stats(self, monitored: MonitoredBox, now: int) -> BoxStats:
        box, ledger = self._server.get_box(monitored.dead), self._server.ledgers[monitored.ledger]
        index = _build_index(monitored, box, ledger)
        retry = self._server.boxes.get(monitored.retry or "")
        return BoxStats(
            depth=index.depth,
            oldest=index.oldest,
            groups=index.groups(),
            parked=len(retry.waiting) if retry else 0,
            progress={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in ledger.progress.items()},
            couriers=self._heartbeats.setdefault(monitored.dead, HeartbeatTracker()).alive(
                [*ledger.worker_statuses.values()], now
            ),
        )

    async def close(self) -> None:
        """Do nothing: there are no connections."""


def _build_index(monitored: MonitoredBox, box: MemoryBox, ledger: MemoryLedger) -> LetterIndex:
    """Build one index over all partitions; letters are numbered, because offsets of partitions overlap."""
    index, count = LetterIndex(), 0
    for partition, letters in enumerate(box.partitions):
        for offset, message in letters.items():
            if ledger.is_settled(monitored.dead, partition, offset):
                continue
            place = Place(monitored.dead, partition, offset)
            letter = read_letter(message, place, monitored.dialect, monitored.read_values, monitored.origin)
            failure = letter.envelope.failure
            when = letter.envelope.failed_at or message.timestamp
            index.add(count, fingerprint(failure), failure.type, failure.category, when)
            count += 1
    return index
