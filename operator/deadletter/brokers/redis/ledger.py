"""The ledger of a dead stream: a hash of tallies and couriers' words, and a list per Replay beside it."""

from bisect import bisect_right
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field
from typing import Any

from deadletter.brokers.errors import LedgerCorrupt, LedgerTooNew
from deadletter.brokers.redis import keys
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.skipped_records import log_skipped
from deadletter.core.heartbeats import WorkerStatus
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

MAX_LIST_ITEMS_PER_READ = 50  # one may be the selection of a step, 160 KB


@dataclass(slots=True)
class LedgerContent:
    """What the hash of a ledger says."""

    tallies: dict[str, tuple[PartitionProgress, ...]] = field(default_factory=dict)
    couriers: list[WorkerStatus] = field(default_factory=list)
    skipped: int = 0

    def add(self, key: bytes, value: bytes) -> bool:
        """Take in one field; False if only a later release knows it."""
        parsed = parse_key(key)
        if parsed is None:
            return False
        try:
            if parsed.kind == "tally":
                self.tallies[parsed.subject] = (decode_progress(key, value),)
            elif parsed.kind == "courier":
                self.couriers.append(decode_worker_status(key, value, WorkerStatus))
        except UnknownRecord:
            return False
        return True


def parse_ledger(ledger: str, pairs: list[bytes]) -> LedgerContent:
    """Fields and values of the hash, unknown ones skipped; LedgerCorrupt names the field that cannot be read."""
    entries = LedgerContent()
    try:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not entries.add(key, value):
                entries.skipped += 1
                log_skipped(ledger, key)
    except LedgerError as error:
        raise LedgerCorrupt(str(error)) from error
    return entries


async def read_progress(client: RedisClient, ledger: str, uid: str) -> PartitionProgress | None:
    """What a Replay had counted."""
    key = progress_key(uid, 0)
    value: bytes | None = await client.command("HGET", ledger, key)
    try:
        return None if value is None else decode_progress(key, value)
    except UnknownRecord as error:
        raise LedgerTooNew(str(error)) from error
    except LedgerError as error:
        raise LedgerCorrupt(str(error)) from error


async def write_status(client: RedisClient, ledger: str, pod: str, word: WorkerStatus | None) -> None:
    """What a worker last said; None takes it back."""
    key = worker_key(pod)
    if word is None:
        await client.command("HDEL", ledger, key)
    else:
        await client.command("HSET", ledger, key, encode_worker_status(key, asdict(word)))


class RedisPublishedPositions:
    """Where a Replay published: a script publishes without a gap, so first and last entry are enough."""

    def __init__(self, lines: list[bytes]) -> None:
        self._count = 0
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for line in lines:
            box, first, last, count = line.decode().rsplit(" ", 3)
            span = (Place.from_entry_id(box, first).offset, Place.from_entry_id(box, last).offset)
            self._ranges.setdefault(box, []).append(span)
            self._count += int(count)
        for spans in self._ranges.values():
            spans.sort()

    def __len__(self) -> int:
        return self._count

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Did it publish there?"""
        spans = self._ranges.get(topic, [])
        at = bisect_right(spans, (offset, 1 << 192)) - 1
        return partition == 0 and at >= 0 and offset <= spans[at][1]


async def read_list_slices(client: RedisClient, key: str) -> AsyncGenerator[list[bytes], None]:
    """A list in slices, so that no reply is without bound."""
    at = 0
    while piece := await client.command("LRANGE", key, at, at + MAX_LIST_ITEMS_PER_READ - 1):
        yield piece
        at += len(piece)


async def read_list(client: RedisClient, key: str) -> list[bytes]:
    """All of a list."""
    return [one async for piece in read_list_slices(client, key) for one in piece]


async def delete_replay_records(client: RedisClient, ledger: str, uid: str) -> None:
    """Selection, produced and tally of one Replay."""
    commands: list[tuple[Arg, ...]] = [
        ("UNLINK", keys.selected(ledger, uid), keys.produced(ledger, uid)),
        ("HDEL", ledger, progress_key(uid, 0)),
    ]
    raise_first(await client.commands(commands))


async def replay_uids(client: RedisClient, ledger: str) -> set[str]:
    """Every Replay that left something in this ledger; none if it is no ledger."""
    if await client.command("TYPE", ledger) != b"hash":
        return set()
    fields: list[bytes] = await client.command("HKEYS", ledger)
    return {field.split(b"/")[1].decode("utf-8", "replace") for field in fields if field.startswith(b"tally/")}


def raise_first(replies: list[Any]) -> list[Any]:
    """The replies, or the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
