"""A courier's desk on Redis: a consumer of the source's group, and of the retry box."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.parked_letters import to_claim
from deadletter.brokers.redis import groups, ledger
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.committer import RedisCommitter
from deadletter.brokers.redis.entries import from_fields, unpack_letter
from deadletter.brokers.redis.leases import LEASE_MS, Leases
from deadletter.brokers.redis.scripts import CLAIM_DUE, RECORD_ATTEMPTS
from deadletter.brokers.types import Claim, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import worker_key
from deadletter.core.letters import SEQUENCE_BITS, Place

BLOCK_MS = 1_000
MAX_CLAIMS_PER_READ = 200
TARGET_REPLY_BYTES = 8 << 20  # bytes of a reply, as far as the messages before tell; Redis itself knows no such bound
TICK_S = 0.5
REFRESH_EVERY_TICKS = 10  # ticks
TAKEOVER_INTERVAL_S = 5.0
log = structlog.stdlib.get_logger("parking")


class RedisSubscription:
    """Keeps the contract of `base.Desk`."""

    blocked_by: BrokerError | None = None  # a stream is open as a whole, or the claim fails

    def __init__(self, client: RedisClient, spec: SubscriptionSpec) -> None:
        self._client, self._spec = client, spec
        self._leases = Leases(client, spec)
        self._committer = RedisCommitter(client, spec, self._leases)
        self._backlog: list[Claim] = []
        self._reply_limit = 1  # messages of a reply
        self._pending_cursor: str | None = "0"  # where our own pending messages go on; None: all read
        self._last_read_id: str | None = None  # the newest message that this desk has read
        self._next_takeover = 0.0
        self._attempts: dict[str, tuple[int, int]] = {}
        self._pods: set[str] = set()
        self._background: asyncio.Task[None] | None = None
        self.lag = 0
        self.parked = 0
        self.lost = 0
        self.trimmed = 0  # messages that were cut off the stream while they were pending

    async def join(self) -> None:
        """Make the group if need be and take back what an earlier process of this name held."""
        await groups.ensure_group(self._client, self._spec)
        await self._leases.release_letters()
        await self._refresh_lag()
        self._background = asyncio.create_task(self._run_background())

    async def leave(self) -> None:
        """Finish what is being written; what is still held may be taken by others at once."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})
        await self._committer.finish()
        with suppress(BrokerError):
            await self._flush_attempts()
            await self._leases.release_all()
            if self._pods:
                await self._client.command("HDEL", self._spec.ledger, *(worker_key(pod) for pod in self._pods))

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due: int | None = None) -> list[Claim]:
        """Due letters, our own pending messages, those abandoned by others, new ones."""
        room = max_bytes - _total_bytes(self._backlog)
        if len(self._backlog) < limit and room > 0:
            try:
                await self._fill_backlog(limit - len(self._backlog), room, due)
            except BaseException:
                self._pending_cursor = "0"  # what was claimed by a reply we never saw is ours: read it again
                raise
        return self._take_from_backlog(limit, max_bytes)

    async def _fill_backlog(self, limit: int, max_bytes: int, due: int | None) -> None:
        count = min(limit, MAX_CLAIMS_PER_READ)
        most_due = count if due is None else min(count, due)
        self._backlog = await self._claim_due(most_due, max_bytes) + self._backlog
        if len(self._backlog) >= count:
            return
        count = min(count, self._reply_limit)
        try:
            found = await self._claim_own_pending(count) or await self._claim_abandoned(count) or await self._claim_new(count)
        except BoxMissing:
            await groups.recreate_group(self._client, self._spec, self._last_read_id)
            return
        self._backlog += found
        self._adapt_reply_limit(found)

    def _adapt_reply_limit(self, found: list[Claim]) -> None:
        if found:
            average = _total_bytes(found) // len(found) + 1
            self._reply_limit = max(1, min(MAX_CLAIMS_PER_READ, TARGET_REPLY_BYTES // average, self._reply_limit * 4))

    def _take_from_backlog(self, limit: int, max_bytes: int) -> list[Claim]:
        dealt: list[Claim] = []
        for claim in self._backlog[:limit]:
            max_bytes -= claim.message.size
            if dealt and max_bytes < 0:
                break
            dealt.append(claim)
        self._backlog = self._backlog[len(dealt) :]
        return [claim for claim in dealt if self._leases.holds(claim)]

    async def _claim_due(self, limit: int, max_bytes: int) -> list[Claim]:
        spec = self._spec
        beside = (names.due, names.holders, names.published, names.lost)
        keys = [spec.retry, *(name(spec.retry) for name in beside)]
        self.parked, lost, *found = await self._client.run_script(CLAIM_DUE, keys, [spec.consumer, LEASE_MS, limit, max_bytes])
        if lost:
            self.lost += lost
            log.error("parked letters lost", letters=lost, box=spec.retry, remedy="look for who deletes or evicts keys")
        claims = [_parked_claim(spec.retry, name, letter) for name, letter in zip(found[::2], found[1::2], strict=True)]
        self._leases.add(claims)
        return claims

    async def _claim_own_pending(self, limit: int) -> list[Claim]:
        while self._pending_cursor is not None:
            entries = await self._read_group(limit, self._pending_cursor)
            self._pending_cursor = entries[-1][0].decode() if entries else None
            if claims := await self._reclaim(entries):
                return claims
        return []

    async def _claim_abandoned(self, limit: int) -> list[Claim]:
        """Messages of consumers whose lease ran out."""
        now = asyncio.get_running_loop().time()
        if now < self._next_takeover:
            return []
        spec, cursor = self._spec, b"0-0"
        while True:
            words: tuple[Arg, ...] = ("XAUTOCLAIM", spec.source, spec.group, spec.consumer, LEASE_MS, cursor)
            cursor, entries, gone = (*(await self._client.command(*words, "COUNT", limit)), ())[:3]
            await self._delete_records_of(gone)
            if claims := await self._reclaim(entries):
                return claims
            if cursor == b"0-0":
                self._next_takeover = now + TAKEOVER_INTERVAL_S
                return []

    async def _delete_records_of(self, gone: list[bytes]) -> None:
        """Redis itself took trimmed messages off the group's list."""
        self.trimmed += len(gone)
        if gone:
            source, group = self._spec.source, self._spec.group
            beside = ("HDEL", names.notes(source, group)), ("ZREM", names.published(source, group))
            await self._client.commands([(*words, *gone) for words in beside])

    async def _claim_new(self, limit: int) -> list[Claim]:
        wait: list[Arg] = [] if self._backlog else ["BLOCK", BLOCK_MS]
        entries = await self._read_group(limit, ">", *wait)
        claims = [self._source_claim(entry) for entry in entries if entry[1] is not None]
        if entries:
            self._last_read_id = entries[-1][0].decode()
        self._leases.add(claims)
        return claims

    async def _read_group(self, limit: int, start: str, *wait: Arg) -> list[Any]:
        spec = self._spec
        reply = await self._client.command(
            "XREADGROUP", "GROUP", spec.group, spec.consumer, "COUNT", limit, *wait, "STREAMS", spec.source, start
        )
        return reply[0][1] if reply else []

    async def _reclaim(self, entries: list[Any]) -> list[Claim]:
        """Messages that were claimed before. Done with are those whose letter a killed courier had published, whatever
        would be decided by now, and trimmed ones, which are counted; of the others the notes are remembered.
        """
        found = [entry for entry in entries if (False, entry[0].decode()) not in self._leases]
        if not found:
            return []
        marks, notes = await self._read_marks_and_attempts([entry[0] for entry in found])
        told = list(zip(found, marks, notes, strict=True))
        if over := [entry[0] for entry, mark, _ in told if mark or entry[1] is None]:
            self.trimmed += sum(not mark and entry[1] is None for entry, mark, _ in told)
            await self._committer.acknowledge(over)
        claims = [self._source_claim(entry, note) for entry, mark, note in told if not mark and entry[1] is not None]
        self._leases.add(claims)
        return claims

    async def _read_marks_and_attempts(self, ids: list[bytes]) -> list[list[bytes | None]]:
        """Per message the mark of its letter, and the note of its attempts."""
        source, group = self._spec.source, self._spec.group
        marks: tuple[Arg, ...] = ("ZMSCORE", names.published(source, group), *ids)
        notes: tuple[Arg, ...] = ("HMGET", names.notes(source, group), *ids)
        return ledger.raise_first(await self._client.commands([marks, notes]))

    def _source_claim(self, entry: list[Any], note: bytes | None = None) -> Claim:
        place = Place.from_entry_id(self._spec.source, entry[0].decode())
        attempts, first = map(int, note.split()[:2]) if note else (0, None)
        return Claim(place, from_fields(entry[1], place.offset >> SEQUENCE_BITS), attempts, first)

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Written within half a second; a parked letter takes it along when it is parked again."""
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        if not claim.parked and self.holds(claim):
            self._attempts[claim.place.id] = (attempts, first_failed_at)

    def holds(self, claim: Claim) -> bool:
        """Is it still ours, as far as the last refresh knows?"""
        return self._leases.holds(claim)

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Durable when it returns."""
        self._attempts.pop(claim.place.id, None)
        await self._committer.settle(claim, settlement)

    async def report_status(self, word: WorkerStatus) -> None:
        """Into the ledger's hash."""
        self._pods.add(word.pod)
        await ledger.write_status(self._client, self._spec.ledger, word.pod, word)

    async def _run_background(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            tick += 1
            with suppress(BrokerError):  # the next claim or settlement says it
                await self._flush_attempts()
            with suppress(BrokerError):  # a Redis out of memory takes no notes, but leases
                if tick % REFRESH_EVERY_TICKS == 0:
                    await self._leases.refresh()
                    await self._refresh_lag()

    async def _flush_attempts(self) -> None:
        if not self._attempts:
            return
        spec, notes, self._attempts = self._spec, self._attempts, {}
        words: list[Arg] = [spec.group, spec.consumer]
        for name, (attempts, first) in notes.items():
            words += (name, f"{attempts} {first}")
        try:
            await self._client.run_script(RECORD_ATTEMPTS, [spec.source, names.notes(spec.source, spec.group)], words)
        except BrokerError:
            ours = {name: note for name, note in notes.items() if (False, name) in self._leases}
            self._attempts = ours | self._attempts
            raise

    async def _refresh_lag(self) -> None:
        found: list[list[Any]] = await self._client.command("XINFO", "GROUPS", self._spec.source)
        told = [dict(zip(group[::2], group[1::2], strict=True)) for group in found]
        ours = next((group for group in told if group[b"name"] == self._spec.group.encode()), {})
        self.lag = ours.get(b"lag") or 0


def _total_bytes(claims: list[Claim]) -> int:
    return sum(claim.message.size for claim in claims)


def _parked_claim(retry: str, name: bytes, letter: bytes) -> Claim:
    place = Place.from_entry_id(retry, name.decode())
    return to_claim(place, unpack_letter(letter, place.offset >> SEQUENCE_BITS))
