"""Letters asked for by name: the ids of a selection, or what a preview selected. Each is accounted for."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.api.assignments import ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.core.letters import SEQUENCE_MASK, Place

ExplicitOffsets = Mapping[int, Sequence[int]]


class PreviewNotFound(Exception):
    """What the preview selected is not in the ledger any more; to take anything else would be wrong."""


def parse_ids(ids: Iterable[str], partitions: Iterable[int], entries: bool) -> ExplicitOffsets:
    """Offsets per partition; ids of a partition that does not exist are asked of the first one and never found."""
    asked: dict[int, set[int]] = {partition: set() for partition in partitions}
    first = min(asked, default=0)
    for one in ids:
        if entries:
            asked[first].add(Place.from_entry_id("", one).offset)
            continue
        partition, _, offset = one.partition("-")
        known = int(partition) in asked
        asked[int(partition) if known else first].add(int(offset) if known else SEQUENCE_MASK - int(offset))
    return {partition: sorted(offsets) for partition, offsets in asked.items()}


def _packed(offsets: Iterable[int]) -> Sequence[int]:
    """Eight bytes an offset of Kafka instead of forty: a preview may have selected millions. Redis packs its own."""
    return offsets if isinstance(offsets, Sequence) else array("Q", offsets)


async def explicit_offsets(
    assignment: ReplayAssignment, broker: Broker, partitions: list[int]
) -> ExplicitOffsets | None:
    """What this Replay asks for by name, per partition; None: it chooses by its selection alone."""
    if assignment.preview_uid is not None:
        ledger, preview = assignment.boxes.ledger, assignment.preview_uid
        selected = await broker.selected_offsets(ledger, preview)
        if not selected and preview not in await broker.replay_progress(ledger):
            sentence = "it was deleted, or made while the queue only observed"
            raise PreviewNotFound(
                f"The ledger does not hold what the preview selected ({sentence}): create both again."
            )
        return {partition: _packed(selected.get(partition, ())) for partition in partitions}
    ids = assignment.spec.select.ids
    return parse_ids(ids, partitions, assignment.broker.redis is not None) if ids else None


@dataclass(slots=True)
class OffsetCursor:
    """The roll of one partition: called in order, so that those who do not answer are known."""

    offsets: Sequence[int]
    index: int = field(default=0)

    @classmethod
    def starting_at(cls, offsets: Sequence[int], start: int) -> "OffsetCursor":
        """The roll from `start` on; those before were called already."""
        return cls(offsets, bisect_left(offsets, start))

    @property
    def bounds(self) -> tuple[int, int]:
        """First and end of what is still called; nothing left: an empty range."""
        return (self.offsets[self.index], self.offsets[-1] + 1) if self.index < len(self.offsets) else (0, 0)

    def take_missing(self, offset: int) -> Sequence[int]:
        """Those before `offset` who did not answer."""
        end = bisect_left(self.offsets, offset, self.index)
        gone, self.index = self.offsets[self.index : end], end
        return gone

    def match(self, offset: int) -> bool:
        """Is this one called? Then it has answered."""
        if self.index < len(self.offsets) and self.offsets[self.index] == offset:
            self.index += 1
            return True
        return False
