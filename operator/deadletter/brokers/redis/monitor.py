"""Registers of dead streams: one look at each in a sweep; letters are read again only when the stream changed.

Depth is the stream's length. Groups are counted over the newest letters, `_MOST` at most; letters that were added are
counted on, and after a deletion all are counted anew.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.redis import keys, ledger
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.reads import to_stored_message
from deadletter.brokers.redis.scripts import Script
from deadletter.brokers.types import MonitoredBox, StoredMessage
from deadletter.core.boxes import BoxStats, FailureGroup
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.heartbeats import HeartbeatTracker, WorkerStatus
from deadletter.core.letter_index import MAX_GROUPS, OTHER_GROUP
from deadletter.core.letters import SEQUENCE_BITS, Letter

MAX_COUNTED_LETTERS = 50_000
MAX_READ_ENTRIES = 200
YIELD_EVERY = 40  # letters read before others get a turn
MAX_STREAMS_PER_REQUEST = 100

# KEYS: streams. Answers per stream: nothing, or length, last id, first id, number of entries ever added.
SUMMARISE = Script(
    """
local out = {}
for index, key in ipairs(KEYS) do
  local kind, sight = redis.call('TYPE', key)['ok'], {}
  if kind == 'stream' then
    local told, by = redis.call('XINFO', 'STREAM', key), {}
    for at = 1, #told, 2 do by[told[at]] = told[at + 1] end
    local first = by['first-entry']
    sight = {by['length'], by['last-generated-id'], first and first[1] or '', by['entries-added'] or -1}
  end
  out[index] = sight
end
return out
""",
    flags="no-writes",
)


@dataclass(slots=True)
class _StreamCount:
    """The open letters of one stream, as last counted."""

    summary: list[Any] = field(default_factory=list)
    groups: dict[str, FailureGroup] = field(default_factory=dict)
    oldest: int | None = None

    def add(self, letter: Letter) -> None:
        failure = letter.envelope.failure
        name = fingerprint(failure)
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            name = OTHER_GROUP
        when = letter.envelope.failed_at or letter.message.timestamp
        kind, category = ("", "") if name == OTHER_GROUP else (failure.type, str(failure.category))
        old = self.groups.get(name) or FailureGroup(name, kind, category, 0, when, when)
        self.groups[name] = FailureGroup(
            name, kind, category, old.letters + 1, min(old.first_seen, when), max(old.last_seen, when)
        )


class RedisMonitor:
    """Keeps the contract of `base.Registers`."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._counts: dict[str, _StreamCount] = {}
        self._heartbeats: dict[str, HeartbeatTracker] = {}
        self._lost: dict[str, int] = {}  # as last read: the number in Redis is never set back

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """Two requests per hundred boxes, and one or more for each that changed."""
        known = {each.dead for each in boxes}
        self._counts = {dead: counted for dead, counted in self._counts.items() if dead in known}
        self._heartbeats = {dead: self._heartbeats.get(dead) or HeartbeatTracker() for dead in known}
        self._lost = {dead: lost for dead, lost in self._lost.items() if dead in known}
        readings: dict[str, BoxStats | BrokerError] = {}
        for at in range(0, len(boxes), MAX_STREAMS_PER_REQUEST):
            readings |= await self._sweep_batch(boxes[at : at + MAX_STREAMS_PER_REQUEST], now)
        return readings

    async def _sweep_batch(self, watched: Sequence[MonitoredBox], now: int) -> dict[str, BoxStats | BrokerError]:
        try:
            sights = await self._client.run_script(SUMMARISE, [each.dead for each in watched], [])
            beside = await self._client.commands([command for each in watched for command in _sibling_reads(each)])
        except BrokerError as error:
            return dict.fromkeys((each.dead for each in watched), error)
        parts = zip(watched, sights, beside[::3], beside[1::3], beside[2::3], strict=True)
        return {each.dead: await self._stats_or_error(each, sight, told, now) for each, sight, *told in parts}

    async def _stats_or_error(
        self, watched: MonitoredBox, sight: list[Any], told: list[Any], now: int
    ) -> BoxStats | BrokerError:
        try:
            if not sight:
                self._counts.pop(watched.dead, None)
                raise BoxMissing(f"stream {watched.dead} does not exist")
            kept, due, lost = ledger.raise_first(told)
            counted, entries = await self._count(watched, sight), ledger.parse_ledger(watched.ledger, kept)
            reading = _reading(counted, entries, due, self._heartbeats[watched.dead].alive(entries.couriers, now))
            return replace(reading, lost=self._newly_lost(watched.dead, int(lost or 0)))
        except BrokerError as error:
            return error

    def _newly_lost(self, dead: str, lost: int) -> int:
        """Return the losses since the last sweep; the first sweep only remembers the count it finds."""
        before, self._lost[dead] = self._lost.get(dead, lost), lost
        return max(0, lost - before)

    async def _count(self, watched: MonitoredBox, sight: list[Any]) -> _StreamCount:
        old = self._counts.get(watched.dead)
        if old is not None and old.summary == sight:
            return old
        grown = old is not None and _has_only_grown(old.summary, sight)
        counted = old if old is not None and grown else _StreamCount()
        self._counts.pop(watched.dead, None)  # half-counted when this fails
        if grown and old is not None:
            await self._add_newer(watched, counted, old.summary[1].decode(), sight[1].decode())
        else:
            await self._add_newest(watched, counted, sight[1].decode())
        if counted.oldest is None or not grown:
            counted.oldest = await self._oldest(watched, sight[2].decode())
        counted.summary = sight
        self._counts[watched.dead] = counted
        return counted

    async def _add_newer(self, watched: MonitoredBox, counted: _StreamCount, after: str, last: str) -> None:
        while entries := await self._client.command("XRANGE", watched.dead, f"({after}", last, "COUNT", MAX_READ_ENTRIES):
            await _count_entries(watched, counted, entries)
            after = entries[-1][0].decode()

    async def _add_newest(self, watched: MonitoredBox, counted: _StreamCount, last: str) -> None:
        end, seen = last, 0
        while seen < MAX_COUNTED_LETTERS and (entries := await self._client.command("XREVRANGE", watched.dead, end, "-", "COUNT", MAX_READ_ENTRIES)):
            await _count_entries(watched, counted, entries)
            seen, end = seen + len(entries), f"({entries[-1][0].decode()}"

    async def _oldest(self, watched: MonitoredBox, first: str) -> int | None:
        entries = await self._client.command("XRANGE", watched.dead, first, first) if first else []
        if not entries:
            return None
        letter = _parse_letter(watched, to_stored_message(watched.dead, entries[0]))
        return letter.envelope.failed_at or letter.place.offset >> SEQUENCE_BITS

    async def close(self) -> None:
        """Connections belong to the broker."""
        self._counts.clear()


def _sibling_reads(watched: MonitoredBox) -> list[tuple[str, ...]]:
    retry = watched.retry or watched.dead
    return [("HGETALL", watched.ledger), ("ZCARD", keys.due(retry)), ("GET", keys.lost(retry))]


def _has_only_grown(old: list[Any], new: list[Any]) -> bool:
    """Nothing was deleted between the two sights: as many were added as the stream is longer, at the same first."""
    added = new[3] - old[3]
    return bool(old[3] >= 0 and added >= 0 and new[0] - old[0] == added and (old[2] == new[2] or not old[2]))


async def _count_entries(watched: MonitoredBox, counted: _StreamCount, entries: list[Any]) -> None:
    for number, entry in enumerate(entries):
        counted.add(_parse_letter(watched, to_stored_message(watched.dead, entry)))
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)


def _parse_letter(watched: MonitoredBox, one: StoredMessage) -> Letter:
    return read_letter(one.message, one.place, watched.dialect, watched.read_values, watched.origin)


def _reading(counted: _StreamCount, entries: ledger.LedgerContent, parked: int, couriers: tuple[WorkerStatus, ...]) -> BoxStats:
    groups = sorted(counted.groups.values(), key=lambda one: (one.fingerprint == OTHER_GROUP, -one.letters, one.fingerprint))
    return BoxStats(
        depth=counted.summary[0],
        oldest=counted.oldest if counted.summary[0] else None,
        groups=tuple(groups),
        parked=parked,
        progress=entries.tallies,
        couriers=couriers,
        skipped=entries.skipped,
    )
