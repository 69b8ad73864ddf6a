"""Settlements of a desk, gathered while the last ones are written: a few scripts carry many.

A letter costs a script more than a message that was delivered, so letters are gathered for longer.
A letter is published first, under a mark beside its source, and its claim is settled then, the mark with it. Killed in
between, the claim comes back and the mark stands: whoever takes it settles it and does nothing else, whatever it would
decide by now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.contract import LETTER_BATCH_INTERVAL_S
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, Fenced
from deadletter.brokers.parked_letters import add_attempts
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.entries import pack_letter
from deadletter.brokers.redis.leases import Leases
from deadletter.brokers.redis.publish import PendingEntry, WriteGuard, delay_ms, publish
from deadletter.brokers.redis.scripts import ACKNOWLEDGE, SETTLE_DUE
from deadletter.brokers.types import Buried, Claim, Parked, Settlement, SubscriptionSpec
from deadletter.core.letters import Message

MAX_SETTLEMENTS = 500


@dataclass(slots=True, eq=False)
class PendingSettlement:
    """One settlement that somebody waits for."""

    claim: Claim
    settlement: Settlement
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # nobody may wait for it any more


_Write = Callable[[Sequence[PendingSettlement]], Awaitable[list[int]]]


class RedisCommitter:
    """Writes the settlements of one desk."""

    def __init__(self, client: RedisClient, spec: SubscriptionSpec, hands: Leases) -> None:
        self._client, self._spec, self._leases = client, spec, hands
        self._ready: list[PendingSettlement] = []
        self._waiting_letters: list[PendingSettlement] = []
        self._flushed_at = float("-inf")  # when letters were last taken to be written
        self._flush_timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Returns when it is written."""
        wish = PendingSettlement(claim, settlement)
        if _target_box(wish, self._spec.retry):
            self._waiting_letters.append(wish)
            self._schedule_flush()
        else:
            self._ready.append(wish)
            self._start_writing()
        await wish.done

    def _schedule_flush(self) -> None:
        loop = asyncio.get_running_loop()
        if self._flush_timer is None:
            self._flush_timer = loop.call_at(max(self._flushed_at + LETTER_BATCH_INTERVAL_S, loop.time()), self._flush_letters)

    def _flush_letters(self) -> None:
        self._flush_timer, self._flushed_at = None, asyncio.get_running_loop().time()
        letters, self._waiting_letters = self._waiting_letters, []
        self._ready += letters
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())

    async def finish(self) -> None:
        """Write what is gathered and wait for it."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_letters()
        if self._writer is not None:
            await asyncio.wait({self._writer})

    async def _write_all(self) -> None:
        while self._ready:
            batch, self._ready = self._ready[:MAX_SETTLEMENTS], self._ready[MAX_SETTLEMENTS:]
            try:
                await self._write_batch(batch)
            finally:
                for wish in batch:  # whatever happened: nobody waits for ever
                    wish.fail(BrokerUnreachable("the settlement did not come to an end"))

    async def _write_batch(self, batch: list[PendingSettlement]) -> None:
        published = await self._publish_all([wish for wish in batch if _target_box(wish, self._spec.retry)])
        # Whoever asked may be gone by now; a letter that lies in its box is settled all the same.
        ready = [*(wish for wish in batch if not _target_box(wish, self._spec.retry)), *published]
        await self._settle_with(self._acknowledge, [wish for wish in ready if not wish.claim.parked])
        await self._settle_with(self._settle_due, [wish for wish in ready if wish.claim.parked])

    async def _publish_all(self, wishes: list[PendingSettlement]) -> list[PendingSettlement]:
        """Box by box: one that refuses keeps no other waiting."""
        published: list[PendingSettlement] = []
        for parked in (False, True):
            for box in {_target_box(wish, self._spec.retry) for wish in wishes if wish.claim.parked is parked}:
                here = [w for w in wishes if w.claim.parked is parked and _target_box(w, self._spec.retry) == box]
                published += await self._publish(here, box or "", parked)
        return published

    async def _publish(self, wishes: list[PendingSettlement], box: str, parked: bool) -> list[PendingSettlement]:
        """Those that lie in the box now, or in another one since before."""
        try:
            ours = await publish(self._client, [_pending_entry(wish, box) for wish in wishes], self._write_guard(parked))
        except BrokerError as error:
            for wish in wishes:
                wish.fail(error)
            return []
        for position, wish in enumerate(wishes):
            if not ours[position]:
                self._fail_as_fenced(wish)
        return [wish for position, wish in enumerate(wishes) if ours[position]]

    def _write_guard(self, parked: bool) -> WriteGuard:
        spec = self._spec
        if parked:
            return WriteGuard("held", names.holders(spec.retry), "", spec.consumer, names.published(spec.retry))
        return WriteGuard("claim", spec.source, spec.group, spec.consumer, names.published(spec.source, spec.group))

    async def _settle_with(self, write: _Write, wishes: list[PendingSettlement]) -> None:
        if not wishes:
            return
        try:
            outcomes = await write(wishes)
        except BrokerError as error:
            for wish in wishes:
                wish.fail(error)
            return
        for wish, outcome in zip(wishes, outcomes, strict=True):
            if not outcome:
                self._fail_as_fenced(wish)
                continue
            self._leases.remove(wish.claim)
            if not wish.done.done():
                wish.done.set_result(None)

    async def _acknowledge(self, wishes: Sequence[PendingSettlement]) -> list[int]:
        return await self.acknowledge([wish.claim.place.id for wish in wishes])

    async def acknowledge(self, ids: Sequence[Arg]) -> list[int]:
        """Messages that are done with, and what is remembered of them. Answers per id: was it ours?"""
        spec = self._spec
        keys = [spec.source, names.notes(spec.source, spec.group), names.published(spec.source, spec.group)]
        outcomes: list[int] = await self._client.run_script(ACKNOWLEDGE, keys, [spec.group, spec.consumer, *ids])
        return outcomes

    async def _settle_due(self, wishes: Sequence[PendingSettlement]) -> list[int]:
        spec = self._spec
        words: list[Arg] = [spec.consumer]
        for wish in wishes:
            if isinstance(wish.settlement, Parked):
                words += (wish.claim.place.id, delay_ms(wish.settlement.due_at), pack_letter(_letter_of(wish)))
            else:
                words += (wish.claim.place.id, "", "")
        keys = [spec.retry, names.due(spec.retry), names.holders(spec.retry), names.published(spec.retry)]
        outcomes: list[int] = await self._client.run_script(SETTLE_DUE, keys, words)
        return outcomes

    def _fail_as_fenced(self, wish: PendingSettlement) -> None:
        self._leases.remove(wish.claim)
        wish.fail(Fenced(f"{wish.claim.place.id} of {wish.claim.place.box} is no longer ours"))


def _target_box(wish: PendingSettlement, retry: str) -> str | None:
    """The box it must be published in before it is settled; a waiting letter is laid back without."""
    if isinstance(wish.settlement, Buried):
        return wish.settlement.box
    return retry if isinstance(wish.settlement, Parked) and not wish.claim.parked else None


def _pending_entry(wish: PendingSettlement, box: str) -> PendingEntry:
    due = wish.settlement.due_at if isinstance(wish.settlement, Parked) else None
    return PendingEntry(box, _letter_of(wish), wish.claim.place.id, due)


def _letter_of(wish: PendingSettlement) -> Message:
    if isinstance(wish.settlement, Parked):
        return add_attempts(wish.settlement.message, wish.claim)
    return wish.settlement.message if isinstance(wish.settlement, Buried) else wish.claim.message
