"""Registers over memory boxes: counted anew in each sweep."""

from collections.abc import Mapping, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.memory.server import Box, Ledger, MemoryServer
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_stats import BoxStats
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker
from deadletter.core.letter_index import LetterIndex
from deadletter.core.letters import Place


class MemoryMonitor:
    """Keeps the contract of `base.Registers`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._hearings: dict[str, HeartbeatTracker] = {}

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """A reading per dead box, or its error."""
        return {each.dead: self._attempt(each, now) for each in boxes}

    def _attempt(self, watched: MonitoredBox, now: int) -> BoxStats | BrokerError:
        try:
            return self._read(watched, now)
        except BrokerError as error:
            return error

    def _read(self, watched: MonitoredBox, now: int) -> BoxStats:
        box, ledger = self._server.box(watched.dead), self._server.ledgers[watched.ledger]
        register = _register(watched, box, ledger)
        retry = self._server.boxes.get(watched.retry or "")
        return BoxStats(
            depth=register.depth,
            oldest=register.oldest,
            groups=register.groups(),
            parked=len(retry.waiting) if retry else 0,
            progress={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in ledger.tallies.items()},
            couriers=self._hearings.setdefault(watched.dead, HeartbeatTracker()).alive(
                [*ledger.couriers.values()], now
            ),
        )

    async def close(self) -> None:
        """Nothing is held."""


def _register(watched: MonitoredBox, box: Box, ledger: Ledger) -> LetterIndex:
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
