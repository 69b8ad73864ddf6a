"""A courier's desk on Redis: a consumer of the source's group, and of the retry box."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.parked_letters import parked_claim
from deadletter.brokers.redis import groups, ledger
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Line, Word
from deadletter.brokers.redis.committer import Clerk
from deadletter.brokers.redis.entries import message_of, unpack_letter
from deadletter.brokers.redis.leases import LEASE, Hands
from deadletter.brokers.redis.scripts import NOTE, TAKE_DUE
from deadletter.brokers.types import Claim, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import worker_key
from deadletter.core.letters import SEQUENCE_BITS, Place

_BLOCK = 1_000
_SLICE = 200
_REPLY = 8 << 20  # bytes of a reply, as far as the messages before tell; Redis itself knows no such bound
_TICK = 0.5
_REFRESH_EVERY = 10  # ticks
_TAKEOVER_EVERY = 5.0
log = structlog.stdlib.get_logger("parking")


class RedisSubscription:
    """Keeps the contract of `base.Desk`."""

    blocked_by: BrokerError | None = None  # a stream is open as a whole, or the claim fails

    def __init__(self, line: Line, spec: SubscriptionSpec) -> None:
        self._line, self._spec = line, spec
        self._hands = Hands(line, spec)
        self._clerk = Clerk(line, spec, self._hands)
        self._backlog: list[Claim] = []
        self._most = 1  # messages of a reply
        self._own: str | None = "0"  # where our own pending messages go on; None: all read
        self._last: str | None = None  # the newest message that this desk has read
        self._takeover_at = 0.0
        self._notes: dict[str, tuple[int, int]] = {}
        self._pods: set[str] = set()
        self._beating: asyncio.Task[None] | None = None
        self.lag = 0
        self.parked = 0
        self.lost = 0
        self.trimmed = 0  # messages that were cut off the stream while they were pending

    async def join(self) -> None:
        """Make the group if need be and take back what an earlier process of this name held."""
        await groups.begin(self._line, self._spec)
        await self._hands.free_due()
        await self._look()
        self._beating = asyncio.create_task(self._beat())

    async def leave(self) -> None:
        """Finish what is being written; what is still held may be taken by others at once."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        await self._clerk.finish()
        with suppress(BrokerError):
            await self._flush_notes()
            await self._hands.give_back()
            if self._pods:
                await self._line.call("HDEL", self._spec.ledger, *(worker_key(pod) for pod in self._pods))

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due: int | None = None) -> list[Claim]:
        """Due letters, our own pending messages, those abandoned by others, new ones."""
        room = max_bytes - _size(self._backlog)
        if len(self._backlog) < limit and room > 0:
            try:
                await self._gather(limit - len(self._backlog), room, due)
            except BaseException:
                self._own = "0"  # what was claimed by a reply we never saw is ours: read it again
                raise
        return self._deal(limit, max_bytes)

    async def _gather(self, limit: int, max_bytes: int, due: int | None) -> None:
        count = min(limit, _SLICE)
        most_due = count if due is None else min(count, due)
        self._backlog = await self._due(most_due, max_bytes) + self._backlog
        if len(self._backlog) >= count:
            return
        count = min(count, self._most)
        try:
            found = await self._own_pending(count) or await self._abandoned(count) or await self._fresh(count)
        except BoxMissing:
            await groups.begin_again(self._line, self._spec, self._last)
            return
        self._backlog += found
        self._learn(found)

    def _learn(self, found: list[Claim]) -> None:
        if found:
            average = _size(found) // len(found) + 1
            self._most = max(1, min(_SLICE, _REPLY // average, self._most * 4))

    def _deal(self, limit: int, max_bytes: int) -> list[Claim]:
        dealt: list[Claim] = []
        for claim in self._backlog[:limit]:
            max_bytes -= claim.message.size
            if dealt and max_bytes < 0:
                break
            dealt.append(claim)
        self._backlog = self._backlog[len(dealt) :]
        return [claim for claim in dealt if self._hands.holds(claim)]

    async def _due(self, limit: int, max_bytes: int) -> list[Claim]:
        spec = self._spec
        beside = (names.due, names.holders, names.published, names.lost)
        keys = [spec.retry, *(name(spec.retry) for name in beside)]
        self.parked, lost, *found = await self._line.run(TAKE_DUE, keys, [spec.consumer, LEASE, limit, max_bytes])
        if lost:
            self.lost += lost
            log.error("parked letters lost", letters=lost, box=spec.retry, remedy="look for who deletes or evicts keys")
        claims = [_parked(spec.retry, name, letter) for name, letter in zip(found[::2], found[1::2], strict=True)]
        self._hands.take(claims)
        return claims

    async def _own_pending(self, limit: int) -> list[Claim]:
        while self._own is not None:
            entries = await self._read_group(limit, self._own)
            self._own = entries[-1][0].decode() if entries else None
            if claims := await self._again(entries):
                return claims
        return []

    async def _abandoned(self, limit: int) -> list[Claim]:
        """Messages of consumers whose lease ran out."""
        now = asyncio.get_running_loop().time()
        if now < self._takeover_at:
            return []
        spec, cursor = self._spec, b"0-0"
        while True:
            words: tuple[Word, ...] = ("XAUTOCLAIM", spec.source, spec.group, spec.consumer, LEASE, cursor)
            cursor, entries, gone = (*(await self._line.call(*words, "COUNT", limit)), ())[:3]
            await self._forget(gone)
            if claims := await self._again(entries):
                return claims
            if cursor == b"0-0":
                self._takeover_at = now + _TAKEOVER_EVERY
                return []

    async def _forget(self, gone: list[bytes]) -> None:
        """Redis itself took trimmed messages off the group's list."""
        self.trimmed += len(gone)
        if gone:
            source, group = self._spec.source, self._spec.group
            beside = ("HDEL", names.notes(source, group)), ("ZREM", names.published(source, group))
            await self._line.calls([(*words, *gone) for words in beside])

    async def _fresh(self, limit: int) -> list[Claim]:
        wait: list[Word] = [] if self._backlog else ["BLOCK", _BLOCK]
        entries = await self._read_group(limit, ">", *wait)
        claims = [self._claim(entry) for entry in entries if entry[1] is not None]
        if entries:
            self._last = entries[-1][0].decode()
        self._hands.take(claims)
        return claims

    async def _read_group(self, limit: int, start: str, *wait: Word) -> list[Any]:
        spec = self._spec
        reply = await self._line.call(
            "XREADGROUP", "GROUP", spec.group, spec.consumer, "COUNT", limit, *wait, "STREAMS", spec.source, start
        )
        return reply[0][1] if reply else []

    async def _again(self, entries: list[Any]) -> list[Claim]:
        """Messages that were claimed before. Done with are those whose letter a killed courier had published, whatever
        would be decided by now, and trimmed ones, which are counted; of the others the notes are remembered.
        """
        found = [entry for entry in entries if (False, entry[0].decode()) not in self._hands]
        if not found:
            return []
        marks, notes = await self._remembered([entry[0] for entry in found])
        told = list(zip(found, marks, notes, strict=True))
        if over := [entry[0] for entry, mark, _ in told if mark or entry[1] is None]:
            self.trimmed += sum(not mark and entry[1] is None for entry, mark, _ in told)
            await self._clerk.acknowledge(over)
        claims = [self._claim(entry, note) for entry, mark, note in told if not mark and entry[1] is not None]
        self._hands.take(claims)
        return claims

    async def _remembered(self, ids: list[bytes]) -> list[list[bytes | None]]:
        """Per message the mark of its letter, and the note of its attempts."""
        source, group = self._spec.source, self._spec.group
        marks: tuple[Word, ...] = ("ZMSCORE", names.published(source, group), *ids)
        notes: tuple[Word, ...] = ("HMGET", names.notes(source, group), *ids)
        return ledger.raise_first(await self._line.calls([marks, notes]))

    def _claim(self, entry: list[Any], note: bytes | None = None) -> Claim:
        place = Place.from_entry_id(self._spec.source, entry[0].decode())
        attempts, first = map(int, note.split()[:2]) if note else (0, None)
        return Claim(place, message_of(entry[1], place.offset >> SEQUENCE_BITS), attempts, first)

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Written within half a second; a parked letter takes it along when it is parked again."""
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        if not claim.parked and self.holds(claim):
            self._notes[claim.place.id] = (attempts, first_failed_at)

    def holds(self, claim: Claim) -> bool:
        """Is it still ours, as far as the last refresh knows?"""
        return self._hands.holds(claim)

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Durable when it returns."""
        self._notes.pop(claim.place.id, None)
        await self._clerk.settle(claim, settlement)

    async def report_status(self, word: WorkerStatus) -> None:
        """Into the ledger's hash."""
        self._pods.add(word.pod)
        await ledger.write_word(self._line, self._spec.ledger, word.pod, word)

    async def _beat(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(_TICK)
            tick += 1
            with suppress(BrokerError):  # the next claim or settlement says it
                await self._flush_notes()
            with suppress(BrokerError):  # a Redis out of memory takes no notes, but leases
                if tick % _REFRESH_EVERY == 0:
                    await self._hands.refresh()
                    await self._look()

    async def _flush_notes(self) -> None:
        if not self._notes:
            return
        spec, notes, self._notes = self._spec, self._notes, {}
        words: list[Word] = [spec.group, spec.consumer]
        for name, (attempts, first) in notes.items():
            words += (name, f"{attempts} {first}")
        try:
            await self._line.run(NOTE, [spec.source, names.notes(spec.source, spec.group)], words)
        except BrokerError:
            ours = {name: note for name, note in notes.items() if (False, name) in self._hands}
            self._notes = ours | self._notes
            raise

    async def _look(self) -> None:
        found: list[list[Any]] = await self._line.call("XINFO", "GROUPS", self._spec.source)
        told = [dict(zip(group[::2], group[1::2], strict=True)) for group in found]
        ours = next((group for group in told if group[b"name"] == self._spec.group.encode()), {})
        self.lag = ours.get(b"lag") or 0


def _size(claims: list[Claim]) -> int:
    return sum(claim.message.size for claim in claims)


def _parked(retry: str, name: bytes, letter: bytes) -> Claim:
    place = Place.from_entry_id(retry, name.decode())
    return parked_claim(place, unpack_letter(letter, place.offset >> SEQUENCE_BITS))
