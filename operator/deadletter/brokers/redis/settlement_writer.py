"""Write the settlements of a subscription: collected while the last ones are written, many in one script.

A letter costs a script more than a delivered message, so letters are collected for longer.

A letter is published first, with a mark next to its source, and its claim is settled afterwards together with the mark.
After a crash in between, the claim is taken over while the mark is still there. The new holder then only settles it,
whatever the policy would decide by now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.contract import LETTER_BATCH_INTERVAL_S
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, Fenced
from deadletter.brokers.redis import keys as key_names
from deadletter.brokers.redis.claim_leases import Leases
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.entries import pack_letter
from deadletter.brokers.redis.publish import PendingEntry, WriteGuard, delay_ms, publish
from deadletter.brokers.redis.scripts import ACKNOWLEDGE, SETTLE_DUE
from deadletter.brokers.retry_headers import add_attempts
from deadletter.brokers.types import Buried, Claim, Parked, Settlement, SubscriptionSpec
from deadletter.core.letters import Message

MAX_SETTLEMENTS = 500


@dataclass(slots=True, eq=False)
class RequestedSettlement:
    """A settlement and the future that its caller waits for."""

    claim: Claim
    settlement: Settlement
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BrokerError) -> None:
        """Raise this error in the caller, unless the settlement is done."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # marks it as retrieved: the caller may be gone


_Write = Callable[[Sequence[RequestedSettlement]], Awaitable[list[int]]]


class RedisSettlementWriter:
    """Writes the settlements of one subscription."""

    def __init__(self, client: RedisClient, spec: SubscriptionSpec, leases: Leases) -> None:
        self._client, self._spec, self._leases = client, spec, leases
        self._queue: list[RequestedSettlement] = []
        self._letters: list[RequestedSettlement] = []  # collected until the next flush
        self._flushed_at = float("-inf")
        self._flush_timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim and return when that is written."""
        request = RequestedSettlement(claim, settlement)
        if self._target(request):
            self._letters.append(request)
            self._schedule_flush()
        else:
            self._queue.append(request)
            self._start_writing()
        await request.done

    def _schedule_flush(self) -> None:
        loop = asyncio.get_running_loop()
        if self._flush_timer is None:
            due = max(self._flushed_at + LETTER_BATCH_INTERVAL_S, loop.time())
            self._flush_timer = loop.call_at(due, self._flush_letters)

    def _flush_letters(self) -> None:
        self._flush_timer, self._flushed_at = None, asyncio.get_running_loop().time()
        letters, self._letters = self._letters, []
        self._queue += letters
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())

    async def finish(self) -> None:
        """Write everything that is collected and wait for it."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_letters()
        if self._writer is not None:
            await asyncio.wait({self._writer})

    async def _write_all(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:MAX_SETTLEMENTS], self._queue[MAX_SETTLEMENTS:]
            try:
                await self._write_batch(batch)
            finally:
                for request in batch:  # after an unexpected error or a cancellation no caller may wait forever
                    request.fail(BrokerUnreachable("the settlement was interrupted"))

    async def _write_batch(self, batch: list[RequestedSettlement]) -> None:
        published = await self._publish_all([request for request in batch if self._target(request)])
        # A published letter is settled even if its caller has been cancelled.
        ready = [*(request for request in batch if not self._target(request)), *published]
        await self._settle_with(self._acknowledge, [request for request in ready if not request.claim.parked])
        await self._settle_with(self._settle_due, [request for request in ready if request.claim.parked])

    async def _publish_all(self, requests: list[RequestedSettlement]) -> list[RequestedSettlement]:
        """Publish target by target, so that a target that refuses writes does not block the others."""
        groups: dict[tuple[bool, str], list[RequestedSettlement]] = {}
        for request in requests:
            groups.setdefault((request.claim.parked, self._target(request) or ""), []).append(request)
        published: list[RequestedSettlement] = []
        for (is_parked, target), group in sorted(groups.items(), key=lambda item: item[0][0]):
            published += await self._publish(group, target, is_parked)
        return published

    async def _publish(
        self, requests: list[RequestedSettlement], target: str, is_parked: bool
    ) -> list[RequestedSettlement]:
        """Publish to one target. Returns the requests whose letter is published, now or by an earlier holder."""
        try:
            entries = [_pending_entry(request, target) for request in requests]
            is_ours = await publish(self._client, entries, self._write_guard(is_parked))
        except BrokerError as error:
            for request in requests:
                request.fail(error)
            return []
        for index, request in enumerate(requests):
            if not is_ours[index]:
                self._fail_as_fenced(request)
        return [request for index, request in enumerate(requests) if is_ours[index]]

    def _write_guard(self, is_parked: bool) -> WriteGuard:
        spec = self._spec
        if is_parked:
            holders, marks = key_names.holders(spec.retry), key_names.published(spec.retry)
            return WriteGuard("held", holders, "", spec.consumer, marks)
        marks = key_names.published(spec.source, spec.group)
        return WriteGuard("claim", spec.source, spec.group, spec.consumer, marks)

    async def _settle_with(self, write: _Write, requests: list[RequestedSettlement]) -> None:
        if not requests:
            return
        try:
            outcomes = await write(requests)
        except BrokerError as error:
            for request in requests:
                request.fail(error)
            return
        for request, outcome in zip(requests, outcomes, strict=True):
            if not outcome:
                self._fail_as_fenced(request)
                continue
            self._leases.remove(request.claim)
            if not request.done.done():
                request.done.set_result(None)

    async def _acknowledge(self, requests: Sequence[RequestedSettlement]) -> list[int]:
        return await self.acknowledge([request.claim.place.id for request in requests])

    async def acknowledge(self, ids: Sequence[Arg]) -> list[int]:
        """Acknowledge messages and delete their attempts and marks. Returns 1 for each id that was ours, else 0."""
        spec = self._spec
        keys = [spec.source, key_names.notes(spec.source, spec.group), key_names.published(spec.source, spec.group)]
        outcomes: list[int] = await self._client.run_script(ACKNOWLEDGE, keys, [spec.group, spec.consumer, *ids])
        return outcomes

    async def _settle_due(self, requests: Sequence[RequestedSettlement]) -> list[int]:
        retry = self._spec.retry
        args: list[Arg] = [self._spec.consumer]
        for request in requests:
            if isinstance(request.settlement, Parked):
                delay = delay_ms(request.settlement.due_at)
                args += (request.claim.place.id, delay, pack_letter(_letter_of(request)))
            else:
                args += (request.claim.place.id, "", "")
        keys = [retry, key_names.due(retry), key_names.holders(retry), key_names.published(retry)]
        outcomes: list[int] = await self._client.run_script(SETTLE_DUE, keys, args)
        return outcomes

    def _fail_as_fenced(self, request: RequestedSettlement) -> None:
        self._leases.remove(request.claim)
        request.fail(Fenced(f"{request.claim.place.id} of {request.claim.place.box} is no longer ours"))

    def _target(self, request: RequestedSettlement) -> str | None:
        """Return where to publish before settling. A letter that is parked again stays in its retry box."""
        if isinstance(request.settlement, Buried):
            return request.settlement.box
        return self._spec.retry if isinstance(request.settlement, Parked) and not request.claim.parked else None


def _pending_entry(request: RequestedSettlement, target: str) -> PendingEntry:
    due_at = request.settlement.due_at if isinstance(request.settlement, Parked) else None
    return PendingEntry(target, _letter_of(request), request.claim.place.id, due_at)


def _letter_of(request: RequestedSettlement) -> Message:
    if isinstance(request.settlement, Parked):
        return add_attempts(request.settlement.message, request.claim)
    return request.settlement.message if isinstance(request.settlement, Buried) else request.claim.message
