"""Read and write the ledger of a dead stream: a hash of progress and worker statuses, and lists per Replay.

A selection stays in the packed form of the ledger, sixteen bytes a letter: a set of a million integers would take a
large part of the memory of a small pod.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import overload

from deadletter.brokers.errors import LedgerCorrupt, LedgerTooNew
from deadletter.brokers.newer_ledger_records import log_skipped_record
from deadletter.brokers.redis import keys
from deadletter.brokers.redis.client import Arg, RedisClient, raise_first
from deadletter.core.heartbeats import WorkerStatus, stored_fields
from deadletter.core.ledger.records import (
    LedgerError,
    UnknownRecord,
    decode_progress,
    decode_worker_status,
    encode_worker_status,
    parse_key,
    progress_key,
    worker_key,
)
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress

MAX_LIST_ITEMS_PER_READ = 50  # an item may be the selection of one commit, 160 KB
OFFSET_BYTES = 16  # milliseconds and sequence number of an entry id
MAX_END_OFFSET = 1 << 192  # above every offset


@dataclass(slots=True)
class LedgerContent:
    """The records of the hash of a ledger."""

    progress: dict[str, tuple[PartitionProgress, ...]] = field(default_factory=dict)
    statuses: list[WorkerStatus] = field(default_factory=list)
    skipped: int = 0

    def add(self, key: bytes, value: bytes) -> bool:
        """Add one record. Returns False if only a later release can read it."""
        parsed = parse_key(key)
        if parsed is None:
            return False
        try:
            if parsed.kind == "tally":
                self.progress[parsed.subject] = (decode_progress(key, value),)
            elif parsed.kind == "courier":
                self.statuses.append(decode_worker_status(key, value, WorkerStatus))
        except UnknownRecord:
            return False
        return True


def parse_ledger(ledger: str, reply: list[bytes]) -> LedgerContent:
    """Parse the reply to HGETALL. Unknown records are skipped; LedgerCorrupt names a record that cannot be read."""
    content = LedgerContent()
    try:
        for key, value in zip(reply[::2], reply[1::2], strict=True):
            if not content.add(key, value):
                content.skipped += 1
                log_skipped_record(ledger, key)
    except LedgerError as error:
        raise LedgerCorrupt(str(error)) from error
    return content


async def read_progress(client: RedisClient, ledger: str, uid: str) -> PartitionProgress | None:
    """Read the progress of a Replay; None if it has not committed anything."""
    key = progress_key(uid, 0)
    value: bytes | None = await client.command("HGET", ledger, key)
    try:
        return None if value is None else decode_progress(key, value)
    except UnknownRecord as error:
        raise LedgerTooNew(str(error)) from error
    except LedgerError as error:
        raise LedgerCorrupt(str(error)) from error


async def write_status(client: RedisClient, ledger: str, pod: str, status: WorkerStatus | None) -> None:
    """Store the status of a worker; None deletes it."""
    key = worker_key(pod)
    if status is None:
        await client.command("HDEL", ledger, key)
    else:
        await client.command("HSET", ledger, key, encode_worker_status(key, stored_fields(status)))


class RedisPublishedPositions:
    """Positions at which a Replay has published. A script publishes a gapless range, so its two ends are enough."""

    def __init__(self, records: list[bytes]) -> None:
        self._count = 0
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for record in records:
            stream, first, last, count = record.decode().rsplit(" ", 3)
            ends = (Place.from_entry_id(stream, first).offset, Place.from_entry_id(stream, last).offset)
            self._ranges.setdefault(stream, []).append(ends)
            self._count += int(count)
        for ranges in self._ranges.values():
            ranges.sort()

    def __len__(self) -> int:
        return self._count

    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """True if the Replay has published at this position."""
        ranges = self._ranges.get(topic, [])
        at = bisect_right(ranges, (offset, MAX_END_OFFSET)) - 1
        return partition == 0 and at >= 0 and offset <= ranges[at][1]


class PackedSelection(Sequence[int]):
    """Offsets in ascending order without duplicates, unpacked when they are accessed."""

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
                raise ValueError("a slice of a selection must have step 1")
            return PackedSelection(self._packed[start * OFFSET_BYTES : max(start, end) * OFFSET_BYTES])
        start = range(len(self))[at] * OFFSET_BYTES
        return int.from_bytes(self._packed[start : start + OFFSET_BYTES])

    def __iter__(self) -> Iterator[int]:
        return map(int.from_bytes, self._pieces())

    def _pieces(self) -> Iterator[bytes | bytearray]:
        return (self._packed[at : at + OFFSET_BYTES] for at in range(0, len(self._packed), OFFSET_BYTES))

    @property
    def is_ordered(self) -> bool:
        """True if each offset is greater than the one before."""
        return all(before < after for before, after in pairwise(self._pieces()))

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_left(self, offset)
        return at < len(self) and self[at] == offset


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Pack offsets, sixteen bytes each."""
    return b"".join(offset.to_bytes(OFFSET_BYTES) for offset in offsets)


async def read_selection(client: RedisClient, ledger: str, uid: str) -> PackedSelection:
    """Read what the DryRun `uid` selected. It is sorted only if its records are not in order."""
    packed = bytearray()
    async for records in _read_list_slices(client, keys.selected(ledger, uid)):
        packed += b"".join(records)
    selection = PackedSelection(packed)
    return selection if selection.is_ordered else PackedSelection(pack_offsets(sorted(set(selection))))


async def read_list(client: RedisClient, key: str) -> list[bytes]:
    """Read a whole list."""
    return [item async for items in _read_list_slices(client, key) for item in items]


async def _read_list_slices(client: RedisClient, key: str) -> AsyncGenerator[list[bytes], None]:
    """Read a list in slices, so that the size of every reply is bounded."""
    at = 0
    while items := await client.command("LRANGE", key, at, at + MAX_LIST_ITEMS_PER_READ - 1):
        yield items
        at += len(items)


async def delete_replay_records(client: RedisClient, ledger: str, uid: str) -> None:
    """Delete selection, published positions and progress of one Replay."""
    commands: list[tuple[Arg, ...]] = [
        ("UNLINK", keys.selected(ledger, uid), keys.produced(ledger, uid)),
        ("HDEL", ledger, progress_key(uid, 0)),
    ]
    raise_first(await client.commands(commands))


async def replay_uids(client: RedisClient, ledger: str) -> set[str]:
    """Return the uid of every Replay with progress in this ledger; empty if the key is not a ledger."""
    if await client.command("TYPE", ledger) != b"hash":
        return set()
    fields: list[bytes] = await client.command("HKEYS", ledger)
    return {name.split(b"/")[1].decode("utf-8", "replace") for name in fields if name.startswith(b"tally/")}
