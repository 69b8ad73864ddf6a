"""Registers over memory boxes: counted anew in each sweep."""

from collections.abc import Mapping, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.memory.server import MemoryBox, MemoryLedger, MemoryServer
from deadletter.brokers.types import MonitoredBox
from deadletter.core.boxes import BoxStats
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker
from deadletter.core.letter_index import LetterIndex
from deadletter.core.letters import Place


class MemoryMonitor:
    """Keeps the contract of `base.Registers`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._heartbeats: dict[str, HeartbeatTracker] = {}

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """A reading per dead box, or its error."""
        return {each.dead: self._stats_or_error(each, now) for each in boxes}

    def _stats_or_error(self, watched: MonitoredBox, now: int) -> BoxStats | BrokerError:
        try:
            return self._stats(watched, now)
        except BrokerError as error:
            return error

    def _stats(self, watched: MonitoredBox, now: int) -> BoxStats:
        box, ledger = self._server.get_box(watched.dead), self._server.ledgers[watched.ledger]
        register = _build_index(watched, box, ledger)
        retry = self._server.boxes.get(watched.retry or "")
        return BoxStats(
            depth=register.depth,
            oldest=register.oldest,
            groups=register.groups(),
            parked=len(retry.waiting) if retry else 0,
            progress={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in ledger.progress.items()},
            couriers=self._heartbeats.setdefault(watched.dead, HeartbeatTracker()).alive(
                [*ledger.worker_statuses.values()], now
            ),
        )

    async def close(self) -> None:
        """Nothing is held."""


def _build_index(watched: MonitoredBox, box: MemoryBox, ledger: MemoryLedger) -> LetterIndex:
    """One register over all partitions; offsets are spread so that they do not meet."""
    register, count = LetterIndex(), 0
    for partition, letters in enumerate(box.partitions):
        for offset, message in letters.items():
            if ledger.is_settled(watched.dead, partition, offset):
                continue
            place = Place(watched.dead, partition, offset)
            letter = read_letter(message, place, watched.dialect, watched.read_values, watched.origin)
            failure = letter.envelope.failure
            when = letter.envelope.failed_at or message.timestamp
            register.add(count, fingerprint(failure), failure.type, failure.category, when)
            count += 1
    return register
