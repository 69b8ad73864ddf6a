"""Which letters failed again: those in the dead box beyond the window that this Replay had sent."""

from collections.abc import Mapping

from deadletter.api.assignments import ReplayAssignment
from deadletter.brokers.base import Broker, Produced
from deadletter.brokers.values import Taken
from deadletter.core.dialects import read_letter
from deadletter.core.letters import Envelope
from deadletter.core.tallies import Span


def was_sent(envelope: Envelope, uid: str, produced: Produced) -> bool:
    """Did the Replay `uid` send it? By its header, or, where the application drops headers, by where it published."""
    return envelope.replay == uid or lies_in(envelope, produced)


def lies_in(envelope: Envelope, produced: Produced) -> bool:
    """Was the letter published there: where it was last consumed from, or, passed on since then, first came from?"""
    return any(
        produced.holds(place.topic, place.partition or 0, place.offset)
        for place in (envelope.hop, envelope.origin)
        if place.topic is not None and place.offset is not None
    )


class Returns:
    """Counts returns per partition of the dead box, each letter once; `starts`: where the frozen windows end.

    What was sent to another queue dies in that one's dead box, on the broker `there`, and in our own dialect.
    """

    def __init__(
        self, broker: Broker, assignment: ReplayAssignment, starts: Mapping[int, int], there: Broker | None = None
    ) -> None:
        self._broker, self._there = broker, there or broker
        self._ledger, self._uid = assignment.boxes.ledger, assignment.uid
        elsewhere = assignment.target.dead
        self._box = elsewhere or assignment.boxes.dead
        own = (assignment.dialect, assignment.read_values, assignment.origin)
        self._reading = ("Auto", False, None) if elsewhere else own
        self._next = {} if elsewhere else dict(starts)
        self._counts: dict[int, int] = {}

    async def count(self) -> dict[int, int]:
        """How many came back so far, by partition."""
        window = await self._there.window(self._box)
        fresh = (Span(one.partition, max(self._next.get(one.partition, 0), one.start), one.end) for one in window)
        spans = [span for span in fresh if span.start < span.end]
        if spans:
            found = await self._read(spans)
            for partition, letters in found.items():
                self._counts[partition] = self._counts.get(partition, 0) + letters
            self._next |= {span.partition: span.end for span in spans}
        return self._counts

    async def _read(self, spans: list[Span]) -> dict[int, int]:
        # After the window's end is known: what returned by then was noted as produced before.
        produced = await self._broker.produced(self._ledger, self._uid)
        found: dict[int, int] = {}
        async for batch in self._there.read(self._box, spans):
            for taken in batch:
                if self._is_return(taken, produced):
                    found[taken.place.partition] = found.get(taken.place.partition, 0) + 1
        return found

    def _is_return(self, taken: Taken, produced: Produced) -> bool:
        letter = read_letter(taken.message, taken.place, *self._reading)
        return was_sent(letter.envelope, self._uid, produced)
