"""Where a letter goes: its target turns a mended message into a publication.

Retry    the queue's own retry box, due now, attempts starting again at 0
Origin   the letter's first topic, in its own partition while that exists, else by key
Box      a box of the same broker
Queue    another queue's source, maybe on another broker
Service  one subscriber, by HTTP
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deadletter.api.assignments import ReplayAssignment
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.letters import SEQUENCE_MASK, Envelope, Letter, Message, Origin

SERVICE = "service"


def message_id(letter: Letter) -> str:
    """The name of the message through its whole life: the one it carries, its origin, or where it lies."""
    origin = letter.envelope.origin
    if letter.envelope.id:
        return letter.envelope.id
    if origin.topic is None or origin.offset is None:
        return f"{letter.place.box}/{letter.place.id}"
    if origin.offset > SEQUENCE_MASK:
        return f"{origin.topic}/{_entry(origin)}"
    return f"{origin.topic}/{origin.partition or 0}/{origin.offset}"


def _entry(origin: Origin) -> str:
    return f"{(origin.offset or 0) >> 64}-{(origin.offset or 0) & SEQUENCE_MASK}"


@dataclass(slots=True, frozen=True)
class PublicationTarget:
    """One kind of target; `partitions` tells how many an origin topic has now, None: it is gone."""

    kind: str
    box: str
    uid: str

    @classmethod
    def from_assignment(cls, assignment: ReplayAssignment) -> "PublicationTarget":
        """The target the operator resolved."""
        told = assignment.target
        box = told.box or (assignment.boxes.retry if told.kind == "Retry" else None) or ""
        return cls(told.kind, SERVICE if told.kind == "Service" else box, assignment.uid)

    def box_for(self, letter: Letter) -> str | None:
        """The box this letter goes to; None: the letter does not say."""
        if self.kind != "Origin":
            return self.box
        topic = letter.envelope.origin.topic
        return None if topic == letter.place.box else topic

    def build_publication(
        self, to: str, letter: Letter, mended: Message, partitions: Mapping[str, int | None], now: int
    ) -> Publication:
        """The publication of a letter whose message is mended."""
        if self.kind == "Retry":
            return Publication(to, headers.add_headers(mended, self._fresh(letter, now)), letter.place, due_at=now)
        stamped = headers.add_replay_headers(mended, message_id(letter), self.uid, letter.envelope.replays + 1)
        return Publication(to, stamped, letter.place, self._partition(to, letter, partitions))

    def _partition(self, to: str, letter: Letter, partitions: Mapping[str, int | None]) -> int | None:
        own = letter.envelope.origin.partition
        if self.kind != "Origin" or own is None or own < 0:
            return None
        return own if own < (partitions.get(to) or 0) else None

    def _fresh(self, letter: Letter, now: int) -> Envelope:
        known = letter.envelope
        return Envelope(
            origin=known.origin,
            group=known.group,
            due_at=now,
            replays=known.replays + 1,
            replay=self.uid,
            id=message_id(letter),
        )
