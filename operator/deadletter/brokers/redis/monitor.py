"""Count the open letters of dead streams: one summary per sweep; letters are read only if the stream has changed.

The depth is the length of the stream. Failure groups are counted over the newest `MAX_COUNTED_LETTERS` letters. New
letters are added to the count; after a deletion all letters are counted again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.redis import keys, ledger
from deadletter.brokers.redis.client import RedisClient, raise_first
from deadletter.brokers.redis.reads import to_stored_message
from deadletter.brokers.redis.scripts import SUMMARISE
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats, FailureGroup
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker
from deadletter.core.letter_index import MAX_GROUPS, OTHER_GROUP
from deadletter.core.letters import SEQUENCE_BITS, Letter

MAX_COUNTED_LETTERS = 50_000
MAX_READ_ENTRIES = 200
MAX_STREAMS_PER_REQUEST = 100
YIELD_EVERY = 40  # letters parsed before other tasks run


class StreamSummary(NamedTuple):
    """State of a stream in one sweep; if it is unchanged, so are the letters."""

    length: int
    last_id: bytes
    first_id: bytes  # empty if the stream is empty
    entries_added: int  # since the stream exists; -1 if unknown


EMPTY_SUMMARY = StreamSummary(0, b"", b"", -1)


@dataclass(slots=True)
class StreamCount:
    """Failure groups and age of the open letters of one stream, as of its last summary."""

    summary: StreamSummary = EMPTY_SUMMARY
    groups: dict[str, FailureGroup] = field(default_factory=dict)
    oldest: int | None = None

    def add(self, letter: Letter) -> None:
        """Count one letter in its failure group."""
        failure = letter.envelope.failure
        name = fingerprint(failure)
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            name = OTHER_GROUP
        when = letter.envelope.failed_at or letter.message.timestamp
        type_, category = ("", "") if name == OTHER_GROUP else (failure.type, str(failure.category))
        old = self.groups.get(name) or FailureGroup(name, type_, category, 0, when, when)
        self.groups[name] = FailureGroup(
            name, type_, category, old.letters + 1, min(old.first_seen, when), max(old.last_seen, when)
        )

    def sorted_groups(self) -> tuple[FailureGroup, ...]:
        """Return the groups, the largest first and the group of all others last."""
        by_size = sorted(self.groups.values(), key=lambda group: (-group.letters, group.fingerprint))
        return tuple(sorted(by_size, key=lambda group: group.fingerprint == OTHER_GROUP))


class RedisMonitor:
    """Implements `contract.BoxMonitor`."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._counts: dict[str, StreamCount] = {}
        self._heartbeats: dict[str, HeartbeatTracker] = {}
        self._lost: dict[str, int] = {}  # as read last; the counter in Redis is never reset

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """Sweep with two requests per hundred streams, and at least one more for each stream that has changed."""
        names = {box.dead for box in boxes}
        self._counts = {dead: count for dead, count in self._counts.items() if dead in names}
        self._heartbeats = {dead: self._heartbeats.get(dead) or HeartbeatTracker() for dead in names}
        self._lost = {dead: lost for dead, lost in self._lost.items() if dead in names}
        found: dict[str, BoxStats | BrokerError] = {}
        for at in range(0, len(boxes), MAX_STREAMS_PER_REQUEST):
            found |= await self._sweep_batch(boxes[at : at + MAX_STREAMS_PER_REQUEST], now)
        return found

    async def _sweep_batch(self, boxes: Sequence[MonitoredBox], now: int) -> dict[str, BoxStats | BrokerError]:
        try:
            summaries = await self._client.run_script(SUMMARISE, [box.dead for box in boxes], [])
            replies = await self._client.commands([command for box in boxes for command in _other_reads(box)])
        except BrokerError as error:
            return dict.fromkeys((box.dead for box in boxes), error)
        parts = zip(boxes, summaries, replies[::3], replies[1::3], replies[2::3], strict=True)
        return {box.dead: await self._stats_or_error(box, summary, reads, now) for box, summary, *reads in parts}

    async def _stats_or_error(
        self, box: MonitoredBox, summary: list[Any], reads: list[Any], now: int
    ) -> BoxStats | BrokerError:
        try:
            if not summary:
                self._counts.pop(box.dead, None)
                raise BoxMissing(f"stream {box.dead} does not exist")
            records, parked, lost = raise_first(reads)
            count, content = await self._count(box, StreamSummary(*summary)), ledger.parse_ledger(box.ledger, records)
            return BoxStats(
                depth=count.summary.length,
                oldest=count.oldest if count.summary.length else None,
                groups=count.sorted_groups(),
                parked=parked,
                progress=content.progress,
                couriers=self._heartbeats[box.dead].alive(content.statuses, now),
                lost=self._newly_lost(box.dead, int(lost or 0)),
                skipped=content.skipped,
            )
        except BrokerError as error:
            return error

    def _newly_lost(self, dead: str, lost: int) -> int:
        """Return the losses since the last sweep; the first sweep only remembers the counter."""
        before, self._lost[dead] = self._lost.get(dead, lost), lost
        return max(0, lost - before)

    async def _count(self, box: MonitoredBox, summary: StreamSummary) -> StreamCount:
        old = self._counts.get(box.dead)
        if old is not None and old.summary == summary:
            return old
        has_grown = old is not None and _has_only_grown(old.summary, summary)
        count = old if old is not None and has_grown else StreamCount()
        self._counts.pop(box.dead, None)  # a count that fails half-way is not kept
        if has_grown:
            await self._add_newer(box, count, summary.last_id.decode())
        else:
            await self._add_newest(box, count, summary.last_id.decode())
        if count.oldest is None or not has_grown:
            count.oldest = await self._oldest(box, summary.first_id.decode())
        count.summary = summary
        self._counts[box.dead] = count
        return count

    async def _add_newer(self, box: MonitoredBox, count: StreamCount, last: str) -> None:
        after = count.summary.last_id.decode()
        while entries := await self._read("XRANGE", box, f"({after}", last):
            await _add_entries(box, count, entries)
            after = entries[-1][0].decode()

    async def _add_newest(self, box: MonitoredBox, count: StreamCount, last: str) -> None:
        end, counted = last, 0
        while counted < MAX_COUNTED_LETTERS and (entries := await self._read("XREVRANGE", box, end, "-")):
            await _add_entries(box, count, entries)
            counted, end = counted + len(entries), f"({entries[-1][0].decode()}"

    async def _read(self, command: str, box: MonitoredBox, start: str, end: str) -> list[Any]:
        entries: list[Any] = await self._client.command(command, box.dead, start, end, "COUNT", MAX_READ_ENTRIES)
        return entries

    async def _oldest(self, box: MonitoredBox, first: str) -> int | None:
        entries = await self._client.command("XRANGE", box.dead, first, first) if first else []
        if not entries:
            return None
        letter = _parse_letter(box, entries[0])
        return letter.envelope.failed_at or letter.place.offset >> SEQUENCE_BITS

    async def close(self) -> None:
        """Drop the counts; the connections belong to the broker."""
        self._counts.clear()


def _other_reads(box: MonitoredBox) -> list[tuple[str, ...]]:
    retry = box.retry or box.dead
    return [("HGETALL", box.ledger), ("ZCARD", keys.due(retry)), ("GET", keys.lost(retry))]


def _has_only_grown(old: StreamSummary, new: StreamSummary) -> bool:
    """True if nothing was deleted: the stream is longer by the number of added entries and its first id is the same."""
    added = new.entries_added - old.entries_added
    is_same_start = old.first_id in (new.first_id, b"")
    return old.entries_added >= 0 and added >= 0 and new.length - old.length == added and is_same_start


async def _add_entries(box: MonitoredBox, count: StreamCount, entries: list[Any]) -> None:
    for number, entry in enumerate(entries):
        count.add(_parse_letter(box, entry))
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)


def _parse_letter(box: MonitoredBox, entry: list[Any]) -> Letter:
    stored = to_stored_message(box.dead, entry)
    return read_letter(stored.message, stored.place, box.dialect, box.read_values, box.origin)
