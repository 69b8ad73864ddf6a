"""Encode and decode the keys and values of ledger records.

Every value is sealed: one byte of version, the CRC-32 of key and content, the content. A value that cannot be read is
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
    """A ledger record cannot be read; the text names its key."""

    def __init__(self, key: bytes, problem: str) -> None:
        super().__init__(f"ledger record {key.decode('utf-8', 'replace')}: {problem}")
        self.key = key


class UnknownRecord(LedgerError):
    """A ledger record is intact, but only a later release understands its version or content."""

    def __init__(self, key: bytes, problem: str) -> None:
        super().__init__(key, f"{problem}; a later release wrote it. Upgrade to that release")


@dataclass(slots=True, frozen=True)
class Key:
    """A parsed record key. `subject` is the box, the uid of a Replay or redrive round, or the pod.

    `settler` is the box partition whose letters were produced; None in records of releases that did not store it.
    `settled_as` is a SettledAs value, or one that only a later release knows.
    """

    kind: str
    subject: str
    partition: int = 0
    chunk: int = 0
    settled_as: str | None = None
    topic: str = ""
    settler: int | None = None


def settled_key(box: str, partition: int, settled_as: str, chunk: int) -> bytes:
    """Return the key for the settled offsets of one chunk of a box partition."""
    return f"settled/{box}/{partition}/{settled_as}/{chunk}".encode()


def selected_key(uid: str, partition: int, chunk: int) -> bytes:
    """Return the key for the offsets that a DryRun selected."""
    return f"selected/{uid}/{partition}/{chunk}".encode()


def produced_key(uid: str, settler: int, topic: str, partition: int, chunk: int) -> bytes:
    """Return the key for the target offsets at which a Replay or redrive round published letters of one partition."""
    return f"produced/{uid}@{settler}/{topic}/{partition}/{chunk}".encode()


def progress_key(uid: str, partition: int) -> bytes:
    """Return the key for the progress of a Replay in one partition."""
    return f"tally/{uid}/{partition}".encode()


def mark_key(box: str, partition: int) -> bytes:
    """Return the key for the highest settled offset and that letter's timestamp."""
    return f"mark/{box}/{partition}".encode()


def worker_key(pod: str) -> bytes:
    """Return the key for the last heartbeat of one worker pod."""
    return f"courier/{pod}".encode()


def parse_key(key: bytes) -> Key | None:
    """Return the parsed key; None if this release does not know its kind or shape, so that the record is skipped."""
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
    """Return version, checksum and content as one value."""
    return bytes((VERSION,)) + crc32(content, crc32(key)).to_bytes(4, "big") + content


def unseal(key: bytes, value: bytes) -> bytes:
    """Return the content of a sealed value; UnknownRecord for another version, LedgerError if the checksum fails."""
    if value and value[0] != VERSION:
        raise UnknownRecord(key, f"version {value[0]} is not known")
    if len(value) < _HEAD:
        raise LedgerError(key, "the value is too short")
    content = value[_HEAD:]
    if int.from_bytes(value[1:_HEAD], "big") != crc32(content, crc32(key)):
        raise LedgerError(key, "the checksum does not match")
    return content


def encode_chunk(key: bytes, offsets: BitMap) -> bytes:
    """Return the sealed bitmap of one chunk."""
    return seal(key, offsets.serialize())


def decode_chunk(key: bytes, value: bytes) -> BitMap:
    """Return the bitmap of one chunk; LedgerError if it is corrupt."""
    content = unseal(key, value)
    try:
        return BitMap.deserialize(content)
    except (ValueError, RuntimeError, IndexError):
        raise LedgerError(key, "the bitmap cannot be read") from None


def split_into_chunks(offsets: Iterable[int]) -> dict[int, BitMap]:
    """Return the offsets as one bitmap per chunk of 65,536."""
    chunks: dict[int, list[int]] = {}
    for chunk, group in groupby(offsets, CHUNK_BITS.__rrshift__):
        chunks.setdefault(chunk, []).extend(group)
    return {chunk: BitMap([offset & CHUNK_MASK for offset in members]) for chunk, members in chunks.items()}


def highest_offset(key: Key, bits: BitMap) -> int:
    """Return the highest offset of a chunk; -1 if it is empty."""
    return key.chunk << CHUNK_BITS | bits.max() if bits else -1


def encode_progress(key: bytes, progress: PartitionProgress) -> bytes:
    """Return the sealed progress of a Replay in one partition."""
    return seal(key, msgspec.json.encode(progress))


def decode_progress(key: bytes, value: bytes) -> PartitionProgress:
    """Return the progress without fields that only a later release knows; LedgerError if it is corrupt."""
    return _decode(key, value, PartitionProgress)


def encode_mark(key: bytes, offset: int, timestamp: int) -> bytes:
    """Return the sealed mark: the highest settled offset and the timestamp of its letter."""
    return seal(key, msgspec.json.encode((offset, timestamp)))


def decode_mark(key: bytes, value: bytes) -> tuple[int, int]:
    """Return offset and timestamp of a mark; LedgerError if it is corrupt."""
    return _decode(key, value, tuple[int, int])


def encode_worker_status(key: bytes, status: Mapping[str, Any]) -> bytes:
    """Return the sealed heartbeat of a worker."""
    return seal(key, msgspec.json.encode(dict(status)))


def decode_worker_status(key: bytes, value: bytes, kind: type[_T]) -> _T:
    """Return a worker's heartbeat as `kind`; unknown fields are ignored, missing ones get their defaults."""
    return _decode(key, value, kind)


def _decode(key: bytes, value: bytes, kind: type[_T]) -> _T:
    content = unseal(key, value)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise UnknownRecord(key, "the content cannot be read") from None
    except msgspec.MsgspecError:
        raise LedgerError(key, "the content cannot be read") from None
