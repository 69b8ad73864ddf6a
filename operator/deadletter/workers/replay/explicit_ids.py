"""Replays of explicit letters: ids listed in the selection, or letters that a preview selected.

Every such letter gets a result, also one that is settled already or no longer exists.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.core.letters import SEQUENCE_MASK, Place

ExplicitOffsets = Mapping[int, Sequence[int]]  # partition -> sorted offsets


class PreviewNotFound(Exception):
    """The ledger no longer holds the letters that the preview selected; replaying others would be wrong."""


def parse_ids(ids: Iterable[str], partitions: Iterable[int], are_entries: bool) -> ExplicitOffsets:
    """Parse letter ids into offsets by partition; with `are_entries`, the ids are entry ids of a stream.

    An id of a partition that does not exist becomes an impossible offset of the first partition, so that the Replay
    counts it as not found.
    """
    offsets: dict[int, set[int]] = {partition: set() for partition in partitions}
    first = min(offsets, default=0)
    for id_ in ids:
        if are_entries:
            offsets[first].add(Place.from_entry_id("", id_).offset)
            continue
        partition, _, offset = id_.partition("-")
        exists = int(partition) in offsets
        offsets[int(partition) if exists else first].add(int(offset) if exists else SEQUENCE_MASK - int(offset))
    return {partition: sorted(found) for partition, found in offsets.items()}


def _pack(offsets: Iterable[int]) -> Sequence[int]:
    """Store Kafka offsets in 8 bytes each instead of 40, as a preview may select millions; Redis packs its own."""
    return offsets if isinstance(offsets, Sequence) else array("Q", offsets)


async def explicit_offsets(
    assignment: ReplayAssignment, broker: Broker, partitions: list[int]
) -> ExplicitOffsets | None:
    """Return the explicit letters of this Replay by partition; None if only its selection chooses letters."""
    if assignment.preview_uid is not None:
        ledger, preview = assignment.boxes.ledger, assignment.preview_uid
        selected = await broker.selected_offsets(ledger, preview)
        if not selected and preview not in await broker.replay_progress(ledger):
            raise PreviewNotFound(
                "The ledger does not hold the letters that the preview selected: the preview was deleted, "
                "or it ran while the queue was only observed. Create the preview and this Replay again."
            )
        return {partition: _pack(selected.get(partition, ())) for partition in partitions}
    ids = assignment.spec.select.ids
    return parse_ids(ids, partitions, assignment.broker.redis is not None) if ids else None


@dataclass(slots=True)
class OffsetCursor:
    """A position in the sorted explicit offsets of one partition; it moves forward with the letters read."""

    offsets: Sequence[int]
    index: int = field(default=0)

    @classmethod
    def starting_at(cls, offsets: Sequence[int], start: int) -> "OffsetCursor":
        """Return a cursor that skips offsets below `start`, which have their results already."""
        return cls(offsets, bisect_left(offsets, start))

    @property
    def bounds(self) -> tuple[int, int]:
        """First offset ahead and the end after the last one; an empty range if none is left."""
        return (self.offsets[self.index], self.offsets[-1] + 1) if self.index < len(self.offsets) else (0, 0)

    def take_missing(self, offset: int) -> Sequence[int]:
        """Move on to `offset` and return the offsets passed over: letters that do not exist."""
        end = bisect_left(self.offsets, offset, self.index)
        missing, self.index = self.offsets[self.index : end], end
        return missing

    def match(self, offset: int) -> bool:
        """Move past `offset` and return True if it is the next explicit offset."""
        if self.index < len(self.offsets) and self.offsets[self.index] == offset:
            self.index += 1
            return True
        return False
