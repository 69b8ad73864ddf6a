"""Subscribe to a stream as a consumer of its group, and to the parked letters of its retry box."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.redis import group_offsets, ledger, stream_admin
from deadletter.brokers.redis import keys as key_names
from deadletter.brokers.redis.claim_leases import LEASE_MS, Leases
from deadletter.brokers.redis.client import Arg, RedisClient, raise_first
from deadletter.brokers.redis.departed_consumers import DepartedConsumers
from deadletter.brokers.redis.entries import from_fields, unpack_letter
from deadletter.brokers.redis.scripts import CLAIM_DUE, RECORD_ATTEMPTS
from deadletter.brokers.redis.settlement_writer import RedisSettlementWriter
from deadletter.brokers.retry_headers import to_claim
from deadletter.brokers.types import Claim, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import worker_key
from deadletter.core.letters import SEQUENCE_BITS, Place

BLOCK_MS = 1_000
MAX_CLAIMS_PER_READ = 200
TARGET_REPLY_BYTES = 8 << 20  # estimated from earlier messages: Redis cannot limit the bytes of a reply
REPLY_GROWTH = 4  # by which factor the number of messages in a reply may grow
TICK_S = 0.5
REFRESH_EVERY_TICKS = 10
CLEAN_UP_EVERY_TICKS = 1_200  # ten minutes: a live worker changes its heartbeat every 30 s
TAKEOVER_INTERVAL_S = 5.0
FIRST_ID = "0"
log = structlog.stdlib.get_logger("subscription")


class RedisSubscription:
    """Implements `contract.Subscription`."""

    blocked_by: BrokerError | None = None  # a stream is never blocked in part: the claim fails instead

    def __init__(self, client: RedisClient, spec: SubscriptionSpec) -> None:
        self._client, self._spec = client, spec
        self._leases = Leases(client, spec)
        self._departed_consumers = DepartedConsumers(client, spec)
        self._settlement_writer = RedisSettlementWriter(client, spec, self._leases)
        self._backlog: list[Claim] = []
        self._reply_limit = 1  # messages of a reply
        self._pending_cursor: str | None = FIRST_ID  # where to continue in our own pending list; None: all read
        self._last_read_id: str | None = None  # of the newest message that this subscription has read
        self._next_takeover = 0.0
        self._attempts: dict[str, tuple[int, int]] = {}
        self._pods: set[str] = set()
        self._background: asyncio.Task[None] | None = None
        self.lag: int | None = None
        self.parked_letters = 0
        self.lost_letters = 0
        self.deleted_messages = 0  # Redis does not tell what was trimmed from a stream

    async def open(self) -> None:
        """Create the group if it is missing and take back the parked letters of an earlier process of this name."""
        await group_offsets.ensure_group(self._client, self._spec)
        await self._leases.release_letters()
        await self._refresh_lag()
        self._background = asyncio.create_task(self._run_background())

    async def close(self) -> None:
        """Finish the settlements that are being written and release all other claims."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})
        await self._settlement_writer.finish()
        with suppress(BrokerError):
            await self._flush_attempts()
            await self._leases.release_all()
            if self._pods:
                await self._client.command("HDEL", self._spec.ledger, *(worker_key(pod) for pod in self._pods))
            await self._departed_consumers.remove_own()

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due_limit: int | None = None) -> list[Claim]:
        """Claim due letters, then our own pending messages, then abandoned messages of others, then new ones."""
        free_bytes = max_bytes - _total_bytes(self._backlog)
        if len(self._backlog) < limit and free_bytes > 0:
            try:
                await self._fill_backlog(limit - len(self._backlog), free_bytes, due_limit)
            except BaseException:
                self._pending_cursor = FIRST_ID  # a reply that was lost may have claimed messages: read them again
                raise
        return self._take_from_backlog(limit, max_bytes)

    async def _fill_backlog(self, limit: int, max_bytes: int, due_limit: int | None) -> None:
        count = min(limit, MAX_CLAIMS_PER_READ)
        due_count = count if due_limit is None else min(count, due_limit)
        self._backlog = await self._claim_due(due_count, max_bytes) + self._backlog
        if len(self._backlog) >= count:
            return
        count = min(count, self._reply_limit)
        try:
            found = (
                await self._claim_own_pending(count)
                or await self._claim_abandoned(count)
                or await self._claim_new(count)
            )
        except BoxMissing:
            await group_offsets.recreate_group(self._client, self._spec, self._last_read_id)
            return
        self._backlog += found
        self._adapt_reply_limit(found)

    def _adapt_reply_limit(self, found: list[Claim]) -> None:
        if found:
            average = _total_bytes(found) // len(found) + 1
            fitting = TARGET_REPLY_BYTES // average
            self._reply_limit = max(1, min(MAX_CLAIMS_PER_READ, fitting, self._reply_limit * REPLY_GROWTH))

    def _take_from_backlog(self, limit: int, max_bytes: int) -> list[Claim]:
        taken: list[Claim] = []
        for claim in self._backlog[:limit]:
            max_bytes -= claim.message.size
            if taken and max_bytes < 0:
                break
            taken.append(claim)
        self._backlog = self._backlog[len(taken) :]
        return [claim for claim in taken if self._leases.holds(claim)]

    async def _claim_due(self, limit: int, max_bytes: int) -> list[Claim]:
        retry = self._spec.retry
        siblings = (key_names.due, key_names.holders, key_names.published, key_names.lost)
        keys = [retry, *(sibling(retry) for sibling in siblings)]
        args: list[Arg] = [self._spec.consumer, LEASE_MS, limit, max_bytes]
        self.parked_letters, lost, *found = await self._client.run_script(CLAIM_DUE, keys, args)
        if lost:
            self.lost_letters += lost
            log.error("parked letters lost", letters=lost, box=retry, remedy="find out who deletes or evicts keys")
        claims = [_parked_claim(retry, id_, letter) for id_, letter in zip(found[::2], found[1::2], strict=True)]
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
        """Take over messages of consumers whose lease has expired."""
        now = asyncio.get_running_loop().time()
        if now < self._next_takeover:
            return []
        spec, cursor = self._spec, b"0-0"
        while True:
            args: tuple[Arg, ...] = ("XAUTOCLAIM", spec.source, spec.group, spec.consumer, LEASE_MS, cursor)
            cursor, entries, deleted = (*(await self._client.command(*args, "COUNT", limit)), ())[:3]
            await self._delete_records_of(deleted)
            if claims := await self._reclaim(entries):
                return claims
            if cursor == b"0-0":
                self._next_takeover = now + TAKEOVER_INTERVAL_S
                return []

    async def _delete_records_of(self, ids: list[bytes]) -> None:
        """Delete attempts and marks of trimmed messages; XAUTOCLAIM has removed these from the pending list."""
        if ids:
            source, group = self._spec.source, self._spec.group
            records = ("HDEL", key_names.notes(source, group)), ("ZREM", key_names.published(source, group))
            await self._client.commands([(*command, *ids) for command in records])

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
        """Claim messages again that were claimed before, with the attempts recorded so far.

        Two kinds are only acknowledged: messages whose letter was published before a crash, and trimmed messages.
        """
        entries = [entry for entry in entries if (False, entry[0].decode()) not in self._leases]
        if not entries:
            return []
        marks, attempts = await self._read_marks_and_attempts([entry[0] for entry in entries])
        found = list(zip(entries, marks, attempts, strict=True))
        if finished := [entry[0] for entry, mark, _ in found if mark or entry[1] is None]:
            await self._settlement_writer.acknowledge(finished)
        claims = [
            self._source_claim(entry, recorded) for entry, mark, recorded in found if not mark and entry[1] is not None
        ]
        self._leases.add(claims)
        return claims

    async def _read_marks_and_attempts(self, ids: list[bytes]) -> list[list[bytes | None]]:
        source, group = self._spec.source, self._spec.group
        marks: tuple[Arg, ...] = ("ZMSCORE", key_names.published(source, group), *ids)
        attempts: tuple[Arg, ...] = ("HMGET", key_names.notes(source, group), *ids)
        return raise_first(await self._client.commands([marks, attempts]))

    def _source_claim(self, entry: list[Any], recorded: bytes | None = None) -> Claim:
        place = Place.from_entry_id(self._spec.source, entry[0].decode())
        attempts, first_failed_at = map(int, recorded.split()[:2]) if recorded else (0, None)
        return Claim(place, from_fields(entry[1], place.offset >> SEQUENCE_BITS), attempts, first_failed_at)

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Record a failed inline attempt; it is written within half a second.

        A parked letter carries its attempts in its headers when it is parked again.
        """
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        if not claim.parked and self.holds(claim):
            self._attempts[claim.place.id] = (attempts, first_failed_at)

    def holds(self, claim: Claim) -> bool:
        """True if the claim was still ours at the last refresh of the leases."""
        return self._leases.holds(claim)

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim and return when that is written."""
        self._attempts.pop(claim.place.id, None)
        await self._settlement_writer.settle(claim, settlement)

    async def report_status(self, status: WorkerStatus) -> None:
        """Store the status in the hash of the ledger."""
        self._pods.add(status.pod)
        await ledger.write_status(self._client, self._spec.ledger, status.pod, status)

    async def _run_background(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            tick += 1
            with suppress(BrokerError):  # the next claim or settlement raises it
                await self._flush_attempts()
            with suppress(BrokerError):  # apart from the attempts: a Redis out of memory still refreshes leases
                if tick % REFRESH_EVERY_TICKS == 0:
                    await self._leases.refresh()
                    await self._refresh_lag()
                if tick % CLEAN_UP_EVERY_TICKS == 0:
                    await self._departed_consumers.remove()

    async def _flush_attempts(self) -> None:
        if not self._attempts:
            return
        spec, recorded, self._attempts = self._spec, self._attempts, {}
        args: list[Arg] = [spec.group, spec.consumer]
        for id_, (attempts, first_failed_at) in recorded.items():
            args += (id_, f"{attempts} {first_failed_at}")
        keys = [spec.source, key_names.notes(spec.source, spec.group)]
        try:
            await self._client.run_script(RECORD_ATTEMPTS, keys, args)
        except BrokerError:
            held = {id_: attempt for id_, attempt in recorded.items() if (False, id_) in self._leases}
            self._attempts = held | self._attempts
            raise

    async def _refresh_lag(self) -> None:
        group = await stream_admin.describe_group(self._client, self._spec.source, self._spec.group) or {}
        self.lag = group.get(b"lag")  # NULL after XDEL, and if the group was created in the middle of the stream


def _total_bytes(claims: list[Claim]) -> int:
    return sum(claim.message.size for claim in claims)


def _parked_claim(retry: str, entry_id: bytes, letter: bytes) -> Claim:
    place = Place.from_entry_id(retry, entry_id.decode())
    return to_claim(place, unpack_letter(letter, place.offset >> SEQUENCE_BITS))
