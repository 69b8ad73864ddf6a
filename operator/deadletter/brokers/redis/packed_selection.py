"""What a DryRun selected, as it lies in the ledger: sixteen bytes a letter, milliseconds and sequence.

A set of a million numbers takes a good part of a small pod; so the bytes stay as they are, and a number is made when it
is asked for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

from deadletter.brokers.redis import keys
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.ledger import read_list_slices

OFFSET_BYTES = 16


class PackedSelection(Sequence[int]):
    """Offsets in ascending order, each once."""

    def __init__(self, packed: bytes | bytearray) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed) // OFFSET_BYTES

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> "PackedSelection": ...
    def __getitem__(self, at: int | slice) -> "int | PackedSelection":
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("a selection is cut, never thinned out or turned round")
            return PackedSelection(self._packed[start * OFFSET_BYTES : max(start, end) * OFFSET_BYTES])
        start = range(len(self))[at] * OFFSET_BYTES
        return int.from_bytes(self._packed[start : start + OFFSET_BYTES])

    def __iter__(self) -> Iterator[int]:
        return map(int.from_bytes, self._pieces())

    def _pieces(self) -> Iterator[bytes | bytearray]:
        return (self._packed[at : at + OFFSET_BYTES] for at in range(0, len(self._packed), OFFSET_BYTES))

    @property
    def is_ordered(self) -> bool:
        """Does each come after the one before?"""
        return all(before < after for before, after in pairwise(self._pieces()))

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_left(self, offset)
        return at < len(self) and self[at] == offset


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Sixteen bytes an offset."""
    return b"".join(offset.to_bytes(OFFSET_BYTES) for offset in offsets)


async def read_selection(client: RedisClient, ledger: str, uid: str) -> PackedSelection:
    """What the DryRun `uid` selected. Its steps lie in order; were they not, they would be put in order."""
    found = bytearray()
    async for piece in read_list_slices(client, keys.selected(ledger, uid)):
        found += b"".join(piece)
    selection = PackedSelection(found)
    return selection if selection.is_ordered else PackedSelection(pack_offsets(sorted(set(selection))))
