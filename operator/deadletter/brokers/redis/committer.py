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
from deadletter.brokers.parked_letters import to_park
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Line, Word
from deadletter.brokers.redis.entries import pack_letter
from deadletter.brokers.redis.leases import Hands
from deadletter.brokers.redis.publish import Guard, Parcel, publish, wait_until
from deadletter.brokers.redis.scripts import ACKNOWLEDGE, SETTLE_DUE
from deadletter.brokers.types import Buried, Claim, Parked, Settlement, SubscriptionSpec
from deadletter.core.letters import Message

_MOST = 500


@dataclass(slots=True, eq=False)
class _Wish:
    """One settlement that somebody waits for."""

    claim: Claim
    how: Settlement
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # nobody may wait for it any more


_Writer = Callable[[Sequence[_Wish]], Awaitable[list[int]]]


class Clerk:
    """Writes the settlements of one desk."""

    def __init__(self, line: Line, spec: SubscriptionSpec, hands: Hands) -> None:
        self._line, self._spec, self._hands = line, spec, hands
        self._wishes: list[_Wish] = []
        self._letters: list[_Wish] = []
        self._posted = float("-inf")  # when letters were last taken to be written
        self._posting: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def settle(self, claim: Claim, how: Settlement) -> None:
        """Returns when it is written."""
        wish = _Wish(claim, how)
        if _target(wish, self._spec.retry):
            self._letters.append(wish)
            self._post_in_time()
        else:
            self._wishes.append(wish)
            self._begin()
        await wish.done

    def _post_in_time(self) -> None:
        loop = asyncio.get_running_loop()
        if self._posting is None:
            self._posting = loop.call_at(max(self._posted + LETTER_BATCH_INTERVAL_S, loop.time()), self._post)

    def _post(self) -> None:
        self._posting, self._posted = None, asyncio.get_running_loop().time()
        letters, self._letters = self._letters, []
        self._wishes += letters
        self._begin()

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def finish(self) -> None:
        """Write what is gathered and wait for it."""
        if self._posting is not None:
            self._posting.cancel()
            self._post()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_all(self) -> None:
        while self._wishes:
            batch, self._wishes = self._wishes[:_MOST], self._wishes[_MOST:]
            try:
                await self._write(batch)
            finally:
                for wish in batch:  # whatever happened: nobody waits for ever
                    wish.fail(BrokerUnreachable("the settlement did not come to an end"))

    async def _write(self, batch: list[_Wish]) -> None:
        published = await self._publish_all([wish for wish in batch if _target(wish, self._spec.retry)])
        # Whoever asked may be gone by now; a letter that lies in its box is settled all the same.
        ready = [*(wish for wish in batch if not _target(wish, self._spec.retry)), *published]
        await self._try(self._acknowledge, [wish for wish in ready if not wish.claim.parked])
        await self._try(self._settle_due, [wish for wish in ready if wish.claim.parked])

    async def _publish_all(self, wishes: list[_Wish]) -> list[_Wish]:
        """Box by box: one that refuses keeps no other waiting."""
        published: list[_Wish] = []
        for parked in (False, True):
            for box in {_target(wish, self._spec.retry) for wish in wishes if wish.claim.parked is parked}:
                here = [w for w in wishes if w.claim.parked is parked and _target(w, self._spec.retry) == box]
                published += await self._publish(here, box or "", parked)
        return published

    async def _publish(self, wishes: list[_Wish], box: str, parked: bool) -> list[_Wish]:
        """Those that lie in the box now, or in another one since before."""
        try:
            ours = await publish(self._line, [_parcel(wish, box) for wish in wishes], self._guard(parked))
        except BrokerError as error:
            for wish in wishes:
                wish.fail(error)
            return []
        for position, wish in enumerate(wishes):
            if not ours[position]:
                self._lost(wish)
        return [wish for position, wish in enumerate(wishes) if ours[position]]

    def _guard(self, parked: bool) -> Guard:
        spec = self._spec
        if parked:
            return Guard("held", names.holders(spec.retry), "", spec.consumer, names.published(spec.retry))
        return Guard("claim", spec.source, spec.group, spec.consumer, names.published(spec.source, spec.group))

    async def _try(self, write: _Writer, wishes: list[_Wish]) -> None:
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
                self._lost(wish)
                continue
            self._hands.let_go(wish.claim)
            if not wish.done.done():
                wish.done.set_result(None)

    async def _acknowledge(self, wishes: Sequence[_Wish]) -> list[int]:
        return await self.acknowledge([wish.claim.place.id for wish in wishes])

    async def acknowledge(self, ids: Sequence[Word]) -> list[int]:
        """Messages that are done with, and what is remembered of them. Answers per id: was it ours?"""
        spec = self._spec
        keys = [spec.source, names.notes(spec.source, spec.group), names.published(spec.source, spec.group)]
        outcomes: list[int] = await self._line.run(ACKNOWLEDGE, keys, [spec.group, spec.consumer, *ids])
        return outcomes

    async def _settle_due(self, wishes: Sequence[_Wish]) -> list[int]:
        spec = self._spec
        words: list[Word] = [spec.consumer]
        for wish in wishes:
            if isinstance(wish.how, Parked):
                words += (wish.claim.place.id, wait_until(wish.how.due_at), pack_letter(_letter(wish)))
            else:
                words += (wish.claim.place.id, "", "")
        keys = [spec.retry, names.due(spec.retry), names.holders(spec.retry), names.published(spec.retry)]
        outcomes: list[int] = await self._line.run(SETTLE_DUE, keys, words)
        return outcomes

    def _lost(self, wish: _Wish) -> None:
        self._hands.let_go(wish.claim)
        wish.fail(Fenced(f"{wish.claim.place.id} of {wish.claim.place.box} is no longer ours"))


def _target(wish: _Wish, retry: str) -> str | None:
    """The box it must be published in before it is settled; a waiting letter is laid back without."""
    if isinstance(wish.how, Buried):
        return wish.how.box
    return retry if isinstance(wish.how, Parked) and not wish.claim.parked else None


def _parcel(wish: _Wish, box: str) -> Parcel:
    due = wish.how.due_at if isinstance(wish.how, Parked) else None
    return Parcel(box, _letter(wish), wish.claim.place.id, due)


def _letter(wish: _Wish) -> Message:
    if isinstance(wish.how, Parked):
        return to_park(wish.how.message, wish.claim)
    return wish.how.message if isinstance(wish.how, Buried) else wish.claim.message
