"""Gather the settlements of one partition for a moment and write them together, one write at a time.

Settlements that need a transaction (letters of the source) may be delayed a little longer than others: a transaction is
five requests and a plain commit is one, so one failing message in a hundred would turn every commit into a transaction.

A settlement that its box refuses for its message alone is written alone from then on, so that the others need not be.

After an error the settlement writer finds out what is durable before it tries again. It also tries again after it was
fenced, as long as the partition is assigned to it: a courier that has just lost the partition may have opened its
transactional id once more.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deadletter.brokers.contract import LETTER_BATCH_INTERVAL_S
from deadletter.brokers.errors import BrokerError, Fenced, MessageRefused
from deadletter.brokers.kafka import hanging_transactions, send_batches
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.errors import translate
from deadletter.brokers.kafka.send_batches import PartitionBatches
from deadletter.brokers.kafka.subscription.group_offsets import HEARTBEAT_MS
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.retry_headers import add_attempts
from deadletter.brokers.types import Buried, Claim, Parked, Publication, Settlement, SubscriptionSpec

GATHER_INTERVAL_S = 0.05
ATTEMPTS_INTERVAL_S = 1.0  # after which attempts are written although nothing is settled
MAX_SETTLEMENTS_PER_WRITE = 1_000
MANY_LETTERS = 500  # as many are no longer delayed
FLUSH_TIMEOUT_S = 4.0  # well below the time that the group waits for a member during a rebalance
FENCED_PAUSE_S = 1.5 * HEARTBEAT_MS / 1000  # by then a courier that was removed from the group knows it


@dataclass(slots=True)
class PendingSettlement:
    """A settlement that is not durable yet, and the future of the task that waits for it."""

    claim: Claim
    settlement: Settlement
    done: "asyncio.Future[None]"

    @property
    def offset(self) -> int:
        """Return the offset of the claimed message."""
        return self.claim.place.offset


class PartitionStore(Protocol):
    """Protocol of a partition as its settlement writer uses it: write settlements and attempts, and recover."""

    async def write(self, settlements: Sequence[PendingSettlement]) -> None:
        """Make all settlements durable together, or raise and make none durable."""

    def may_be_delayed(self, pending: PendingSettlement) -> bool:
        """True if the settlement would turn a plain commit into a transaction, and is better written with others."""

    @property
    def is_assigned(self) -> bool:
        """True if the partition is assigned to this courier as far as it knows."""

    async def recover(self) -> None:
        """Fence writes that may still be under way, then replace the state in memory by what is durable.

        Fenced: the group says that the partition is not assigned to this courier.
        """

    def is_settled(self, offset: int) -> bool:
        """True if it is durable that this message is settled."""

    async def write_attempts(self) -> None:
        """Write the attempts that were recorded."""


class SettlementWriter:
    """Write the settlements of one partition in batches, and recover after an error."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._pending: list[PendingSettlement] = []
        self._wake = asyncio.Event()
        self._refused: set[int] = set()  # offsets of claims whose settlement a box refused
        self._has_new_attempts = False
        self._is_state_known = True
        self._closing = asyncio.Event()
        self._letters_written_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._task = asyncio.ensure_future(self._run())

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim; return when it is durable."""
        if self._closing.is_set():
            raise _fenced()
        pending = PendingSettlement(claim, settlement, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._wake.set()
        await pending.done

    def write_attempts_soon(self) -> None:
        """Write changed attempts soon, even if nothing is settled."""
        self._has_new_attempts = True
        self._wake.set()

    async def close(self, flush: bool) -> None:
        """Stop; with `flush`, write what is pending first. Refuse the rest."""
        self._closing.set()
        self._wake.set()
        if not flush:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError):
            await asyncio.wait_for(self._task, FLUSH_TIMEOUT_S)
        self._fail(self._pending, _fenced())

    async def _run(self) -> None:
        while not self._closing.is_set() or self._pending:
            await self._wake.wait()
            self._wake.clear()
            if not self._closing.is_set():
                await self._gather()
            try:
                await self._write(batch := self._next_batch())
            except asyncio.CancelledError:
                self._fail(batch, _fenced())
                raise

    def _next_batch(self) -> list[PendingSettlement]:
        """Take the settlements to write now; letters among them only if it is time for a transaction."""
        letters = [one for one in self._pending if self._store.may_be_delayed(one)]
        now, due_at = asyncio.get_running_loop().time(), self._letters_written_at + LETTER_BATCH_INTERVAL_S
        is_early = now < due_at and len(letters) < MANY_LETTERS and not self._closing.is_set()
        if letters and is_early:
            ready, later = [one for one in self._pending if not self._store.may_be_delayed(one)], letters
            self._wake_at(due_at)
        else:
            ready, later = self._pending, []
            self._letters_written_at = now if letters else self._letters_written_at
        known = [one for one in ready if one.offset in self._refused]
        if known[1:]:  # a refused try costs a recovery, so that many of them would hold up all others
            ready = [one for one in ready if one is known[0] or one.offset not in self._refused]
            later = known[1:] + later
            self._wake.set()
        if ready[MAX_SETTLEMENTS_PER_WRITE:]:
            self._wake.set()
        self._pending = ready[MAX_SETTLEMENTS_PER_WRITE:] + later
        return ready[:MAX_SETTLEMENTS_PER_WRITE]

    def _wake_at(self, when: float) -> None:
        if self._timer is None or self._timer.when() < when:
            self._timer = asyncio.get_running_loop().call_at(when, self._wake.set)

    async def _gather(self) -> None:
        await asyncio.sleep(GATHER_INTERVAL_S)
        waited = GATHER_INTERVAL_S
        while (
            not self._pending and self._has_new_attempts and waited < ATTEMPTS_INTERVAL_S and not self._closing.is_set()
        ):
            await asyncio.sleep(GATHER_INTERVAL_S)
            waited += GATHER_INTERVAL_S

    async def _write(self, batch: list[PendingSettlement]) -> None:
        try:
            while not await self._try_batch(batch):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), FENCED_PAUSE_S)
        except Exception as error:  # noqa: BLE001  (without its settlement writer the partition would stand still)
            self._is_state_known = False
            self._fail(batch, translate(error, "a settlement"))

    async def _try_batch(self, batch: list[PendingSettlement]) -> bool:
        """Write the batch; return False if the producer was fenced although the partition is still assigned."""
        try:
            await self._write_together_or_alone([one for one in batch if not one.done.done()])
        except Fenced:
            if not self._closing.is_set() and self._store.is_assigned:
                return False
            raise
        return True

    async def _write_together_or_alone(self, batch: list[PendingSettlement]) -> None:
        """Write all together; if that fails, each alone, so that only the settlement at fault fails."""
        refused = [one for one in batch if one.offset in self._refused]
        together = [one for one in batch if one.offset not in self._refused]
        if together or not refused:
            try:
                await self._write_once(together)
            except Fenced:
                raise
            except BrokerError:
                refused = together + refused
        for pending in refused:
            await self._write_alone(pending)

    async def _write_alone(self, pending: PendingSettlement) -> None:
        try:
            await self._write_once([pending])
        except Fenced:
            raise
        except BrokerError as error:
            if isinstance(error, MessageRefused):
                self._refused.add(pending.offset)
            self._fail([pending], error)
        else:
            self._refused.discard(pending.offset)

    async def _write_once(self, batch: list[PendingSettlement]) -> None:
        if not self._is_state_known:
            await self._store.recover()
        self._is_state_known = False  # until the write has succeeded
        left = [one for one in batch if not self._store.is_settled(one.offset)]
        if left or not batch:
            has_new_attempts, self._has_new_attempts = self._has_new_attempts, False
            try:
                if left:
                    await self._store.write(left)
                elif has_new_attempts:
                    await self._store.write_attempts()
            except BaseException:
                self._has_new_attempts |= has_new_attempts
                raise
        self._is_state_known = True
        for pending in batch:
            if not pending.done.done():
                pending.done.set_result(None)

    @staticmethod
    def _fail(batch: Sequence[PendingSettlement], error: BrokerError) -> None:
        for pending in batch:
            if not pending.done.done():
                pending.done.set_exception(error)
                pending.done.exception()  # marks it as retrieved: the task that waited may have ended


def _fenced() -> Fenced:
    return Fenced("the partition is assigned to another courier")


def target_topics(settlements: Sequence[PendingSettlement], spec: SubscriptionSpec) -> list[str]:
    """Return the topics that these settlements write letters to."""
    dead = [how.box for pending in settlements if isinstance(how := pending.settlement, Buried)]
    return dead + [spec.retry for pending in settlements if isinstance(pending.settlement, Parked)]


async def pack_letters(
    kafka: KafkaClient,
    producer: TransactionalProducer,
    settlements: Sequence[PendingSettlement],
    spec: SubscriptionSpec,
) -> list[PartitionBatches]:
    """Pack the letters that these settlements bury or park, and complete hanging transactions where they go."""
    limits = await producer.topic_limits.look_up(target_topics(settlements, spec))
    counts = {topic: limit.partitions for topic, limit in limits.items()}
    packed = await send_batches.pack_publications(_publications(settlements, spec, counts), producer.topic_limits)
    await hanging_transactions.complete_hanging(kafka, producer, (one.topic_partition for one in packed))
    return packed


def _publications(
    settlements: Sequence[PendingSettlement], spec: SubscriptionSpec, counts: dict[str, int]
) -> list[Publication]:
    """Return the letters; each goes to the claim's partition modulo the partition count of its topic."""
    found = []
    for pending in settlements:
        claim, how = pending.claim, pending.settlement
        if isinstance(how, Buried):
            partition = claim.place.partition % counts[how.box]
            found.append(Publication(how.box, how.message, claim.place, partition))
        elif isinstance(how, Parked):
            partition = claim.place.partition % counts[spec.retry]
            message = add_attempts(how.message, claim)
            found.append(Publication(spec.retry, message, claim.place, partition, how.due_at))
    return found
