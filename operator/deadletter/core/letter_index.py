"""Index the letters of one dead box partition in bitmaps, to compute depth, oldest letter and failure groups."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from pyroaring import BitMap64

from deadletter.core.box_types import FailureGroup
from deadletter.core.ledger.records import CHUNK_BITS
from deadletter.core.times import clamp

OTHER_GROUP = "other"
MAX_GROUPS = 100
MAX_GROUPED_LETTERS = 1_000_000
_BATCH_SIZE = 8_192


@dataclass(slots=True)
class _Members:
    error_type: str
    category: str
    first_seen: int
    last_seen: int
    offsets: BitMap64 = field(default_factory=BitMap64)


class _FailureTimes:
    """Failure times of the letters of one chunk, by offset; four bytes per letter if they are within 49 days."""

    __slots__ = ("base", "deltas", "offsets")

    def __init__(self, base: int) -> None:
        self.base = clamp(base)
        self.offsets = BitMap64()
        self.deltas: array[int] = array("I")

    def add(self, offset: int, when: int) -> None:
        delta = when - self.base
        if not 0 <= delta < 1 << 32:
            delta = clamp(when) - self.base
            if self.deltas.typecode == "I":
                self.deltas = array("q", self.deltas)
        self.deltas.insert(self.offsets.rank(offset), delta)
        self.offsets.add(offset)

    def drop_below(self, start: int) -> int:
        gone = self.offsets.rank(start - 1)
        self.offsets.remove_range(0, start)
        del self.deltas[:gone]
        return gone

    def time_of(self, offset: int) -> int:
        return self.base + self.deltas[self.offsets.rank(offset) - 1]


class LetterIndex:
    """Index of one box partition. Open letters are letters - settled; those of a group are group & open."""

    def __init__(self, max_groups: int = MAX_GROUPS, max_grouped: int = MAX_GROUPED_LETTERS) -> None:
        self._letters = BitMap64()
        self._settled = BitMap64()
        self._groups: dict[str, _Members] = {}
        self._times: dict[int, _FailureTimes] = {}
        self._max_groups = max_groups
        self._max_grouped = max_grouped
        self._grouped = 0

    def add(self, offset: int, fingerprint: str, error_type: str, category: str, failed_at: int) -> None:
        """Add the letter at this offset; no effect if it is already known."""
        if offset in self._letters:
            return
        self._letters.add(offset)
        chunk = offset >> CHUNK_BITS
        if chunk not in self._times:
            self._times[chunk] = _FailureTimes(failed_at)
        self._times[chunk].add(offset, failed_at)
        members = self._group(fingerprint, error_type, category, failed_at)
        members.offsets.add(offset)
        members.first_seen = min(members.first_seen, failed_at)
        members.last_seen = max(members.last_seen, failed_at)
        self._grouped += 1
        if self._grouped > self._max_grouped:
            self._ungroup_oldest()

    def _group(self, fingerprint: str, error_type: str, category: str, now: int) -> _Members:
        if fingerprint not in self._groups and len(self._groups) >= self._max_groups:
            self._free_slots()
        if fingerprint not in self._groups and len(self._groups) >= self._max_groups:
            fingerprint, error_type, category = OTHER_GROUP, "", ""
        if fingerprint not in self._groups:
            self._groups[fingerprint] = _Members(error_type, category, now, now)
        return self._groups[fingerprint]

    def _free_slots(self) -> None:
        empty = [name for name, members in self._groups.items() if not self._open_of(members)]
        for name in empty:
            del self._groups[name]

    def _open_of(self, members: _Members) -> int:
        return int(members.offsets.difference_cardinality(self._settled))

    def _ungroup_oldest(self) -> None:
        """Drop groups and times of the oldest chunk to bound memory; its letters are then only counted."""
        chunk = min(number for number, held in self._times.items() if len(held.deltas))
        held = self._times[chunk]
        self._grouped -= len(held.deltas)
        self._times[chunk] = _FailureTimes(held.base + min(held.deltas))
        for members in self._groups.values():
            members.offsets.remove_range(chunk << CHUNK_BITS, (chunk + 1) << CHUNK_BITS)

    def settle(self, offsets: Iterable[int]) -> None:
        """Mark these offsets as settled; their letters may be added later."""
        rest = iter(offsets)
        while batch := list(islice(rest, _BATCH_SIZE)):  # in batches, because BitMap64.update copies its argument
            self._settled.update(batch)

    def drop_below(self, start: int) -> None:
        """Forget all letters below `start`, which retention has deleted."""
        for bits in (self._letters, self._settled, *(members.offsets for members in self._groups.values())):
            bits.remove_range(0, start)
        for chunk in [number for number in self._times if number << CHUNK_BITS < start]:
            self._grouped -= self._times[chunk].drop_below(start)
            if (chunk + 1) << CHUNK_BITS <= start:
                del self._times[chunk]

    @property
    def depth(self) -> int:
        """Number of open letters."""
        return int(self._letters.difference_cardinality(self._settled))

    @property
    def oldest_offset(self) -> int | None:
        """Lowest open offset; None if no letter is open."""
        return next((offset for offset in self._open()), None)

    def _open(self) -> BitMap64:
        return self._letters - self._settled

    @property
    def oldest(self) -> int | None:
        """When the oldest open letter failed; None if no letter is open."""
        offset = self.oldest_offset
        if offset is None:
            return None
        held = self._times[offset >> CHUNK_BITS]
        return held.time_of(offset) if offset in held.offsets else held.base

    def groups(self) -> tuple[FailureGroup, ...]:
        """Return the groups with open letters, the largest first and `other` last."""
        found = [
            FailureGroup(name, members.error_type, members.category, letters, members.first_seen, members.last_seen)
            for name, members in self._groups.items()
            if (letters := self._open_of(members))
        ]
        return tuple(
            sorted(found, key=lambda group: (group.fingerprint == OTHER_GROUP, -group.letters, group.fingerprint))
        )

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and offset in self._letters
