"""Registers over memory boxes: counted anew in each sweep."""

from collections.abc import Mapping, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.memory.server import Box, Ledger, MemoryServer
from deadletter.brokers.types import GroupReading, Reading, Watched
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import Hearing
from deadletter.core.letter_index import Register
from deadletter.core.letters import Place


class MemoryRegisters:
    """Keeps the contract of `base.Registers`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._hearings: dict[str, Hearing] = {}

    async def sweep(self, watched: Sequence[Watched], now: int) -> Mapping[str, Reading | BrokerError]:
        """A reading per dead box, or its error."""
        return {each.dead: self._attempt(each, now) for each in watched}

    def _attempt(self, watched: Watched, now: int) -> Reading | BrokerError:
        try:
            return self._read(watched, now)
        except BrokerError as error:
            return error

    def _read(self, watched: Watched, now: int) -> Reading:
        box, ledger = self._server.box(watched.dead), self._server.ledgers[watched.ledger]
        register = _register(watched, box, ledger)
        retry = self._server.boxes.get(watched.retry or "")
        return Reading(
            depth=register.depth,
            oldest=register.oldest,
            groups=tuple(
                GroupReading(one.fingerprint, one.error_type, one.category, one.letters, one.first_seen, one.last_seen)
                for one in register.groups()
            ),
            parked=len(retry.waiting) if retry else 0,
            tallies={uid: tuple(parts[p] for p in sorted(parts)) for uid, parts in ledger.tallies.items()},
            couriers=self._hearings.setdefault(watched.dead, Hearing()).living([*ledger.couriers.values()], now),
        )

    async def close(self) -> None:
        """Nothing is held."""


def _register(watched: Watched, box: Box, ledger: Ledger) -> Register:
    """One register over all partitions; offsets are spread so that they do not meet."""
    register, count = Register(), 0
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
