"""Which letters failed again: those in the dead box beyond the window that this Replay had sent."""

from collections.abc import Mapping
from dataclasses import replace

from deadletter.api.assignments import ReplayAssignment
from deadletter.brokers.contract import Broker, PublishedPositions
from deadletter.brokers.errors import BoxMissing
from deadletter.core.dialects.reader import read_letter
from deadletter.core.letters import Envelope
from deadletter.core.replay_progress import Span


def was_sent_by(envelope: Envelope, uid: str, produced: PublishedPositions) -> bool:
    """Did the Replay `uid` send it? By its header, or, where the application drops headers, by where it published."""
    return envelope.replay == uid or was_produced(envelope, produced)


def was_produced(envelope: Envelope, produced: PublishedPositions) -> bool:
    """Was the letter published there: where it was last consumed from, or, passed on since then, first came from?"""
    return any(
        produced.holds(place.topic, place.partition or 0, place.offset)
        for place in (envelope.hop, envelope.origin)
        if place.topic is not None and place.offset is not None
    )


class FailedAgainCounter:
    """Counts returns by partition, each letter once; `starts`: where the frozen windows of the dead box end.

    Letters that routes lead elsewhere, or that were sent to another queue, die in other boxes, written by us; what
    crossed to the broker `there` is looked for there.
    """

    def __init__(
        self, broker: Broker, assignment: ReplayAssignment, starts: Mapping[int, int], there: Broker | None = None
    ) -> None:
        self._broker, self._there = broker, there or broker
        self._ledger, self._uid = assignment.boxes.ledger, assignment.uid
        self._boxes = assignment.target.watched or (assignment.boxes.dead,)
        self._own = assignment.boxes.dead if there is None else None
        self._dialect = (assignment.dialect, assignment.read_values, assignment.origin)
        self._next = {(self._own, partition): start for partition, start in starts.items()}
        self._counts: dict[int, int] = {}

    async def count(self) -> dict[int, int]:
        """How many came back so far, by partition."""
        for box in self._boxes:
            spans = await self._fresh(box)
            found = await self._read(box, spans) if spans else {}
            for partition, letters in found.items():
                self._counts[partition] = self._counts.get(partition, 0) + letters
            self._next |= {(box, span.partition): span.end for span in spans}
        return self._counts

    async def _fresh(self, box: str) -> list[Span]:
        try:
            window = await self._there.window(box)
        except BoxMissing:
            if box == self._own:
                raise
            return []  # nothing can have ended there
        fresh = (replace(one, start=max(self._next.get((box, one.partition), 0), one.start)) for one in window)
        return [span for span in fresh if span.start < span.end]

    async def _read(self, box: str, spans: list[Span]) -> dict[int, int]:
        # After the window's end is known: what returned by then was noted as produced before.
        produced = await self._broker.published_positions(self._ledger, self._uid)
        dialect = self._dialect if box == self._own else ("Auto", False, None)
        found: dict[int, int] = {}
        async for batch in self._there.read(box, spans):
            for taken in batch:
                letter = read_letter(taken.message, taken.place, *dialect)
                if was_sent_by(letter.envelope, self._uid, produced):
                    found[taken.place.partition] = found.get(taken.place.partition, 0) + 1
        return found
