"""What a DryRun selected, as it lies in the ledger: sixteen bytes a letter, milliseconds and sequence.

A set of a million numbers takes a good part of a small pod; so the bytes stay as they are, and a number is made when it
is asked for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

from deadletter.brokers.redis import keys
from deadletter.brokers.redis.client import Line
from deadletter.brokers.redis.ledger import read_pieces

_WIDTH = 16


class Selection(Sequence[int]):
    """Offsets in ascending order, each once."""

    def __init__(self, packed: bytes | bytearray) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed) // _WIDTH

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> "Selection": ...
    def __getitem__(self, at: int | slice) -> "int | Selection":
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("a selection is cut, never thinned out or turned round")
            return Selection(self._packed[start * _WIDTH : max(start, end) * _WIDTH])
        start = range(len(self))[at] * _WIDTH
        return int.from_bytes(self._packed[start : start + _WIDTH])

    def __iter__(self) -> Iterator[int]:
        return map(int.from_bytes, self._pieces())

    def _pieces(self) -> Iterator[bytes | bytearray]:
        return (self._packed[at : at + _WIDTH] for at in range(0, len(self._packed), _WIDTH))

    @property
    def is_ordered(self) -> bool:
        """Does each come after the one before?"""
        return all(before < after for before, after in pairwise(self._pieces()))

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_left(self, offset)
        return at < len(self) and self[at] == offset


def packed(offsets: Iterable[int]) -> bytes:
    """Sixteen bytes an offset."""
    return b"".join(offset.to_bytes(_WIDTH) for offset in offsets)


async def read_selection(line: Line, ledger: str, uid: str) -> Selection:
    """What the DryRun `uid` selected. Its steps lie in order; were they not, they would be put in order."""
    found = bytearray()
    async for piece in read_pieces(line, keys.selected(ledger, uid)):
        found += b"".join(piece)
    selection = Selection(found)
    return selection if selection.is_ordered else Selection(packed(sorted(set(selection))))
