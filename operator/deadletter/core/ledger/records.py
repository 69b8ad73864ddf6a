"""Keys and values of the ledger: what was settled, selected, produced and counted, as bytes.

Every value is sealed: one byte of version, the CRC-32 of key and content, the content. A value that does not open is
an error that names its key, never an empty set.

Later releases may write kinds, reasons, versions and fields that this one does not know; docs/reference/ledger.md lists
the records and the rules by which they may grow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar
from zlib import crc32

import msgspec
from pyroaring import BitMap

from deadletter.core.replay_progress import PartitionProgress

VERSION = 1
CHUNK_BITS = 16
CHUNK_MASK = (1 << CHUNK_BITS) - 1
_HEAD = 5
_T = TypeVar("_T")
_KINDS = {"settled": 5, "selected": 4, "produced": 5, "tally": 3, "mark": 3, "courier": 2}


class LedgerError(ValueError):
    """A record of the ledger cannot be read; the text names its key."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(f"ledger record {key.decode('utf-8', 'replace')}: {why}")
        self.key = key


class UnknownRecord(LedgerError):
    """A record is intact, but of a version or content that only a later release knows."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(key, f"{why}; a later release wrote it. Upgrade to that release")


@dataclass(slots=True, frozen=True)
class Key:
    """What a record of the ledger is about. `subject`: the box, the uid of a Replay or round, or the pod.

    `settler`: the box partition whose letters were produced; None in records of versions that did not say it.
    `why`: a `Why`, or a reason that only a later release knows.
    """

    kind: str
    subject: str
    partition: int = 0
    chunk: int = 0
    settled_as: str | None = None
    topic: str = ""
    settler: int | None = None


def settled_key(box: str, partition: int, why: str, chunk: int) -> bytes:
    """Settled offsets of one chunk of a box partition."""
    return f"settled/{box}/{partition}/{why}/{chunk}".encode()


def selected_key(uid: str, partition: int, chunk: int) -> bytes:
    """Offsets that a DryRun selected."""
    return f"selected/{uid}/{partition}/{chunk}".encode()


def produced_key(uid: str, settler: int, topic: str, partition: int, chunk: int) -> bytes:
    """Offsets at which a Replay or redrive round published letters of one box partition in the target."""
    return f"produced/{uid}@{settler}/{topic}/{partition}/{chunk}".encode()


def progress_key(uid: str, partition: int) -> bytes:
    """What a Replay counted in one partition."""
    return f"tally/{uid}/{partition}".encode()


def mark_key(box: str, partition: int) -> bytes:
    """The highest settled offset and that letter's timestamp."""
    return f"mark/{box}/{partition}".encode()


def worker_key(pod: str) -> bytes:
    """The last word of one courier."""
    return f"courier/{pod}".encode()


def parse_key(key: bytes) -> Key | None:
    """Return what the key says; None for a kind or shape of key that this release does not know: skip its record."""
    kind, *rest = key.decode("utf-8", "replace").split("/")
    if _KINDS.get(kind) != len(rest) + 1:
        return None
    try:
        return _key(kind, rest)
    except ValueError:
        return None


def _key(kind: str, rest: list[str]) -> Key:
    if kind == "settled":
        return Key(kind, rest[0], int(rest[1]), int(rest[3]), rest[2])
    if kind == "selected":
        return Key(kind, rest[0], int(rest[1]), int(rest[2]))
    if kind == "produced":
        uid, _, settler = rest[0].partition("@")
        return Key(kind, uid, int(rest[2]), int(rest[3]), topic=rest[1], settler=int(settler) if settler else None)
    return Key(kind, rest[0], int(rest[1]) if len(rest) > 1 else 0)


def seal(key: bytes, content: bytes) -> bytes:
    """Version, checksum and content as one value."""
    return bytes((VERSION,)) + crc32(content, crc32(key)).to_bytes(4, "big") + content


def unseal(key: bytes, value: bytes) -> bytes:
    """Return the content of a sealed value; UnknownRecord for another version, LedgerError if the checksum fails."""
    if value and value[0] != VERSION:
        raise UnknownRecord(key, f"version {value[0]} is not known")
    if len(value) < _HEAD:
        raise LedgerError(key, "the value is too short")
    content = value[_HEAD:]
    if int.from_bytes(value[1:_HEAD], "big") != crc32(content, crc32(key)):
        raise LedgerError(key, "the checksum does not hold")
    return content


def encode_chunk(key: bytes, offsets: BitMap) -> bytes:
    """The sealed bitmap of one chunk."""
    return seal(key, offsets.serialize())


def decode_chunk(key: bytes, value: bytes) -> BitMap:
    """The bitmap of one chunk; LedgerError when it is corrupt."""
    content = unseal(key, value)
    try:
        return BitMap.deserialize(content)
    except (ValueError, RuntimeError, IndexError):
        raise LedgerError(key, "the bitmap cannot be read") from None


def split_into_chunks(offsets: Iterable[int]) -> dict[int, BitMap]:
    """Offsets as one bitmap per chunk of 65,536."""
    chunks: dict[int, list[int]] = {}
    for chunk, some in groupby(offsets, CHUNK_BITS.__rrshift__):
        chunks.setdefault(chunk, []).extend(some)
    return {chunk: BitMap([offset & CHUNK_MASK for offset in some]) for chunk, some in chunks.items()}


def highest_offset(key: Key, bits: BitMap) -> int:
    """The highest offset of a chunk; -1 when it is empty."""
    return key.chunk << CHUNK_BITS | bits.max() if bits else -1


def encode_progress(key: bytes, tally: PartitionProgress) -> bytes:
    """The sealed tally."""
    return seal(key, msgspec.json.encode(tally))


def decode_progress(key: bytes, value: bytes) -> PartitionProgress:
    """Return the tally without the fields that only a later release knows; LedgerError when it is corrupt."""
    return _decoded(key, value, PartitionProgress)


def encode_mark(key: bytes, offset: int, timestamp: int) -> bytes:
    """The sealed mark: highest settled offset and the timestamp of its letter."""
    return seal(key, msgspec.json.encode((offset, timestamp)))


def decode_mark(key: bytes, value: bytes) -> tuple[int, int]:
    """Offset and timestamp of a mark; LedgerError when it is corrupt."""
    return _decoded(key, value, tuple[int, int])


def encode_worker_status(key: bytes, word: Mapping[str, Any]) -> bytes:
    """A courier's last word, sealed."""
    return seal(key, msgspec.json.encode(dict(word)))


def decode_worker_status(key: bytes, value: bytes, kind: type[_T]) -> _T:
    """Return a courier's last word as `kind`: unknown fields are ignored, missing ones have their default."""
    return _decoded(key, value, kind)


def _decoded(key: bytes, value: bytes, kind: type[_T]) -> _T:
    content = unseal(key, value)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise UnknownRecord(key, "the content cannot be read") from None
    except msgspec.MsgspecError:
        raise LedgerError(key, "the content cannot be read") from None
