"""Count letters that failed again: those beyond the frozen window of a dead box that this Replay had sent."""

from collections.abc import Mapping
from dataclasses import replace

from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.contract import Broker, PublishedPositions
from deadletter.brokers.errors import BoxMissing
from deadletter.core.dialects.reader import read_letter
from deadletter.core.letters import Envelope
from deadletter.core.replay_progress import Span


def was_sent_by(envelope: Envelope, uid: str, produced: PublishedPositions) -> bool:
    """True if the Replay `uid` sent the letter: by its header, or, if the application drops headers, by its place."""
    return envelope.replay == uid or was_produced(envelope, produced)


def was_produced(envelope: Envelope, produced: PublishedPositions) -> bool:
    """True if the letter was published where it was last consumed, or, if passed on since then, at its origin."""
    return any(
        produced.contains(place.topic, place.partition or 0, place.offset)
        for place in (envelope.hop, envelope.origin)
        if place.topic is not None and place.offset is not None
    )


class FailedAgainCounter:
    """Counts letters that failed again, each once, by partition of the box that they are in.

    Letters sent to another queue, or led elsewhere by a route, fail into other dead boxes; these are read too.
    `window_ends` are the ends of the frozen windows, `target_broker` is the broker of the target if it is another one.
    """

    def __init__(
        self,
        broker: Broker,
        assignment: ReplayAssignment,
        window_ends: Mapping[int, int],
        target_broker: Broker | None = None,
    ) -> None:
        self._broker, self._target_broker = broker, target_broker or broker
        self._ledger, self._uid = assignment.boxes.ledger, assignment.uid
        self._boxes = assignment.target.watched or (assignment.boxes.dead,)
        self._own_box = assignment.boxes.dead if target_broker is None else None
        self._dialect = (assignment.dialect, assignment.read_values, assignment.origin)
        self._next = {(self._own_box, partition): end for partition, end in window_ends.items()}
        self._counts: dict[int, int] = {}

    async def count(self) -> dict[int, int]:
        """Read what is new and return how many letters failed again so far, by partition."""
        for box in self._boxes:
            spans = await self._unread_spans(box)
            found = await self._count_spans(box, spans) if spans else {}
            for partition, letters in found.items():
                self._counts[partition] = self._counts.get(partition, 0) + letters
            self._next |= {(box, span.partition): span.end for span in spans}
        return self._counts

    async def _unread_spans(self, box: str) -> list[Span]:
        try:
            window = await self._target_broker.window(box)
        except BoxMissing:
            if box == self._own_box:
                raise
            return []  # no letter can have failed into a box that does not exist
        unread = (replace(span, start=max(self._next.get((box, span.partition), 0), span.start)) for span in window)
        return [span for span in unread if span.start < span.end]

    async def _count_spans(self, box: str, spans: list[Span]) -> dict[int, int]:
        # Read after the window: the place of every letter in it was recorded as produced before the letter failed.
        produced = await self._broker.published_positions(self._ledger, self._uid)
        dialect = self._dialect if box == self._own_box else ("Auto", False, None)
        found: dict[int, int] = {}
        async for batch in self._target_broker.read(box, spans):
            for stored in batch:
                letter = read_letter(stored.message, stored.place, *dialect)
                if was_sent_by(letter.envelope, self._uid, produced):
                    found[stored.place.partition] = found.get(stored.place.partition, 0) + 1
        return found
