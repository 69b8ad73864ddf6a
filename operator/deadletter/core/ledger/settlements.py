"""The ledger: keys and values of its records, and which letters of one box partition are settled, and why."""

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
    """The settled offsets of one box partition.

    A letter is settled when any reason holds it, also one that only a later release knows. Such records are never
    written again, because only reasons that were added or removed here have changed.
    """

    def __init__(self, box: str, partition: int) -> None:
        self.box = box
        self.partition = partition
        self._chunks: dict[tuple[str, int], BitMap] = {}
        self._all: dict[int, BitMap] = {}
        self._changed: set[tuple[str, int]] = set()

    def add(self, why: str, offsets: Iterable[int]) -> None:
        """These offsets are settled now; their chunks have changed."""
        for chunk, bits in split_into_chunks(offsets).items():
            self._chunks.setdefault((why, chunk), BitMap()).update(bits)
            self._all.setdefault(chunk, BitMap()).update(bits)
            self._changed.add((why, chunk))

    def load(self, key: bytes, value: bytes | None) -> list[int]:
        """Take in one `settled` record of the ledger and give the offsets that were not settled before.

        The last record of a key counts, a tombstone empties it.
        """
        parsed = parse_key(key)
        if (
            parsed is None
            or parsed.settled_as is None
            or (parsed.subject, parsed.partition) != (self.box, self.partition)
        ):
            return []
        place, before = (parsed.settled_as, parsed.chunk), self._all.get(parsed.chunk, BitMap())
        if value is None:
            self._chunks.pop(place, None)
        else:
            self._chunks[place] = decode_chunk(key, value)
        self._gather(parsed.chunk)
        return [parsed.chunk << CHUNK_BITS | low for low in self._all.get(parsed.chunk, BitMap()) - before]

    def _gather(self, chunk: int) -> None:
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
        """The lowest offset from `start` on that is not settled."""
        while (bits := self._all.get(start >> CHUNK_BITS)) is not None:
            chunk = start >> CHUNK_BITS
            missing = BitMap(range(start & CHUNK_MASK, CHUNK_MASK + 1)) - bits
            if missing:
                return chunk << CHUNK_BITS | missing.min()
            start = (chunk + 1) << CHUNK_BITS
        return start

    def offsets_settled_as(self, why: str) -> list[int]:
        """The offsets settled for this reason, in order."""
        chunks = sorted(chunk for reason, chunk in self._chunks if reason == why)
        return [chunk << CHUNK_BITS | low for chunk in chunks for low in self._chunks[why, chunk]]

    def is_settled_as(self, why: str, offset: int) -> bool:
        """Is it settled for this reason?"""
        return (offset & CHUNK_MASK) in self._chunks.get((why, offset >> CHUNK_BITS), ())

    def remove(self, why: str, offsets: Iterable[int]) -> None:
        """These offsets are no longer settled for this reason (an archived letter was restored)."""
        for chunk, bits in split_into_chunks(offsets).items():
            held = self._chunks.get((why, chunk))
            if held is not None:
                held -= bits
                self._changed.add((why, chunk))
                self._gather(chunk)

    def take_changed_records(self) -> Records:
        """The records to write for all that changed since the last call."""
        places, self._changed = sorted(self._changed), set()
        return [self._record(why, chunk) for why, chunk in places]

    def _record(self, why: str, chunk: int) -> tuple[bytes, bytes]:
        key = settled_key(self.box, self.partition, why, chunk)
        return key, encode_chunk(key, self._chunks[why, chunk])

    def drop_below(self, start: int) -> Records:
        """Forget whole chunks below the box's start offset; the tombstones that say so in the ledger."""
        gone = sorted(place for place in self._chunks if (place[1] + 1) << CHUNK_BITS <= start)
        for place in gone:
            del self._chunks[place]
            self._all.pop(place[1], None)
            self._changed.discard(place)
        return [(settled_key(self.box, self.partition, why, chunk), None) for why, chunk in gone]
