"""Track which letters of one box partition are settled, and as what, as the ledger stores it."""

from collections.abc import Iterable, Iterator

from pyroaring import BitMap

from deadletter.core.ledger.records import (
    CHUNK_BITS,
    CHUNK_MASK,
    decode_chunk,
    encode_chunk,
    parse_key,
    settled_key,
    split_into_chunks,
)

Records = list[tuple[bytes, bytes | None]]


class Settlements:
    """The settled offsets of one box partition, in one bitmap per SettledAs value and chunk.

    A letter is settled if any bitmap holds it, even one whose SettledAs value only a later release knows. Such records
    are never written again, because only bitmaps changed here are written.
    """

    def __init__(self, box: str, partition: int) -> None:
        self.box = box
        self.partition = partition
        self._chunks: dict[tuple[str, int], BitMap] = {}
        self._all: dict[int, BitMap] = {}
        self._changed: set[tuple[str, int]] = set()

    def add(self, settled_as: str, offsets: Iterable[int]) -> None:
        """Add settled offsets."""
        for chunk, bits in split_into_chunks(offsets).items():
            self._chunks.setdefault((settled_as, chunk), BitMap()).update(bits)
            self._all.setdefault(chunk, BitMap()).update(bits)
            self._changed.add((settled_as, chunk))

    def load(self, key: bytes, value: bytes | None) -> list[int]:
        """Load one `settled` record of the ledger and return the offsets that were not settled before.

        The last record of a key wins; a tombstone empties it.
        """
        parsed = parse_key(key)
        if (
            parsed is None
            or parsed.settled_as is None
            or (parsed.subject, parsed.partition) != (self.box, self.partition)
        ):
            return []
        bitmap, before = (parsed.settled_as, parsed.chunk), self._all.get(parsed.chunk, BitMap())
        if value is None:
            self._chunks.pop(bitmap, None)
        else:
            self._chunks[bitmap] = decode_chunk(key, value)
        self._merge_chunk(parsed.chunk)
        return [parsed.chunk << CHUNK_BITS | low for low in self._all.get(parsed.chunk, BitMap()) - before]

    def _merge_chunk(self, chunk: int) -> None:
        parts = [bits for (_, number), bits in self._chunks.items() if number == chunk]
        if parts:
            self._all[chunk] = BitMap.union(*parts) if len(parts) > 1 else parts[0].copy()
        else:
            self._all.pop(chunk, None)

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and (offset & CHUNK_MASK) in self._all.get(offset >> CHUNK_BITS, ())

    def __len__(self) -> int:
        return sum(len(bits) for bits in self._all.values())

    def __iter__(self) -> Iterator[int]:
        for chunk in sorted(self._all):
            yield from (chunk << CHUNK_BITS | low for low in self._all[chunk])

    def first_unsettled(self, start: int) -> int:
        """Return the lowest offset at or after `start` that is not settled."""
        while (bits := self._all.get(start >> CHUNK_BITS)) is not None:
            chunk = start >> CHUNK_BITS
            missing = BitMap(range(start & CHUNK_MASK, CHUNK_MASK + 1)) - bits
            if missing:
                return chunk << CHUNK_BITS | missing.min()
            start = (chunk + 1) << CHUNK_BITS
        return start

    def is_settled_as(self, settled_as: str, offset: int) -> bool:
        """True if the offset was settled this way."""
        return (offset & CHUNK_MASK) in self._chunks.get((settled_as, offset >> CHUNK_BITS), ())

    def remove(self, settled_as: str, offsets: Iterable[int]) -> None:
        """Reopen offsets that were settled this way, such as restored archived letters."""
        for chunk, bits in split_into_chunks(offsets).items():
            held = self._chunks.get((settled_as, chunk))
            if held is not None:
                held -= bits
                self._changed.add((settled_as, chunk))
                self._merge_chunk(chunk)

    def take_changed_records(self) -> Records:
        """Return the records to write for everything that changed since the last call."""
        places, self._changed = sorted(self._changed), set()
        return [self._record(settled_as, chunk) for settled_as, chunk in places]

    def _record(self, settled_as: str, chunk: int) -> tuple[bytes, bytes]:
        key = settled_key(self.box, self.partition, settled_as, chunk)
        return key, encode_chunk(key, self._chunks[settled_as, chunk])

    def drop_below(self, start: int) -> Records:
        """Forget whole chunks below the box's start offset and return the tombstones for the ledger."""
        gone = sorted(place for place in self._chunks if (place[1] + 1) << CHUNK_BITS <= start)
        for place in gone:
            del self._chunks[place]
            self._all.pop(place[1], None)
            self._changed.discard(place)
        return [(settled_key(self.box, self.partition, settled_as, chunk), None) for settled_as, chunk in gone]
