"""One committer per partition: it gathers verdicts for a moment and writes them together, never two at once.

What needs a transaction of its own kind (a letter of the source) may wait a little longer than what does not: a
transaction is five requests, a plain commit one, and one failing message in a hundred would make every commit one.
After an error it finds out what is durable before it tries again. A fence is no end as long as the partition is ours:
one that lost it a moment too late may have opened our transactional id once more.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deadletter.brokers.contract import LETTER_BATCH_INTERVAL_S
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.kafka.errors import translate
from deadletter.brokers.kafka.subscription.membership import HEARTBEAT_MS
from deadletter.brokers.types import Claim, Settlement

GATHER = 0.05
NOTE_AFTER = 1.0
MOST = 1_000
MANY_LETTERS = 500  # so many wait for no more
FLUSH = 4.0  # well below what the group waits for us when it forms anew
FENCED_PAUSE = 1.5 * HEARTBEAT_MS / 1000  # by then one that is no longer in the group has heard of it


@dataclass(slots=True)
class PendingSettlement:
    """What became of a claim, and who waits for it to be durable."""

    claim: Claim
    settlement: Settlement
    done: "asyncio.Future[None]"

    @property
    def offset(self) -> int:
        """Of the claimed message."""
        return self.claim.place.offset


class PartitionStore(Protocol):
    """What a partition must be able to do."""

    async def write(self, verdicts: Sequence[PendingSettlement]) -> None:
        """Make all of them durable together, or none and raise."""

    def may_be_delayed(self, verdict: PendingSettlement) -> bool:
        """Would it turn a plain commit into a transaction, so that it is better written with others of its kind?"""

    @property
    def is_assigned(self) -> bool:
        """Is the partition still assigned to us, as far as we were told?"""

    async def recover(self) -> None:
        """Forget what is in memory and read what is durable, after fencing what may still be under way.

        Fenced: the group says that it is no longer ours.
        """

    def is_settled(self, offset: int) -> bool:
        """Is it durable that this message is dealt with?"""

    async def write_attempts(self) -> None:
        """Keep attempts that were noted."""


class PartitionCommitter:
    """Gathers, writes, and after an error finds out what happened before it tries again."""

    def __init__(self, writer: PartitionStore) -> None:
        self._writer = writer
        self._pending: list[PendingSettlement] = []
        self._wake = asyncio.Event()
        self._noted = False
        self._sound = True
        self._closing = asyncio.Event()
        self._posted = float("-inf")  # when letters were last written
        self._alarm: asyncio.TimerHandle | None = None
        self._task = asyncio.ensure_future(self._run())

    async def settle(self, claim: Claim, how: Settlement) -> None:
        """Returns when it is durable."""
        if self._closing.is_set():
            raise Fenced("the partition went to another courier")
        verdict = PendingSettlement(claim, how, asyncio.get_running_loop().create_future())
        self._pending.append(verdict)
        self._wake.set()
        await verdict.done

    def schedule_attempts(self) -> None:
        """Attempts changed: write them soon, even when nothing is settled."""
        self._noted = True
        self._wake.set()

    async def close(self, flush: bool) -> None:
        """Write what is gathered, if it can still be ours, and refuse the rest."""
        self._closing.set()
        self._wake.set()
        if not flush:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError):
            await asyncio.wait_for(self._task, FLUSH)
        self._fail(self._pending, Fenced("the partition went to another courier"))

    async def _run(self) -> None:
        while not self._closing.is_set() or self._pending:
            await self._wake.wait()
            self._wake.clear()
            if not self._closing.is_set():
                await self._gather()
            try:
                await self._write(batch := self._next())
            except asyncio.CancelledError:
                self._fail(batch, Fenced("the partition went to another courier"))
                raise

    def _next(self) -> list[PendingSettlement]:
        """What is written now: the letters among them when it is time for a transaction."""
        letters = [verdict for verdict in self._pending if self._writer.may_be_delayed(verdict)]
        now = asyncio.get_running_loop().time()
        is_early = (
            now < self._posted + LETTER_BATCH_INTERVAL_S and len(letters) < MANY_LETTERS and not self._closing.is_set()
        )
        if letters and is_early:
            ready, later = [one for one in self._pending if not self._writer.may_be_delayed(one)], letters
            self._wake_at(self._posted + LETTER_BATCH_INTERVAL_S)
        else:
            ready, later = self._pending, []
            self._posted = now if letters else self._posted
        if ready[MOST:]:
            self._wake.set()
        self._pending = ready[MOST:] + later
        return ready[:MOST]

    def _wake_at(self, when: float) -> None:
        if self._alarm is None or self._alarm.when() < when:
            self._alarm = asyncio.get_running_loop().call_at(when, self._wake.set)

    async def _gather(self) -> None:
        await asyncio.sleep(GATHER)
        waited = GATHER
        while not self._pending and self._noted and waited < NOTE_AFTER and not self._closing.is_set():
            await asyncio.sleep(GATHER)
            waited += GATHER

    async def _write(self, batch: list[PendingSettlement]) -> None:
        try:
            while not await self._tried(batch):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), FENCED_PAUSE)
        except Exception as error:  # noqa: BLE001  (a committer that ended would let its partition stand for ever)
            self._sound = False
            self._fail(batch, translate(error, "a settlement"))

    async def _tried(self, batch: list[PendingSettlement]) -> bool:
        """Has everybody heard? False: we were fenced, and the partition is still ours."""
        try:
            await self._all_or_each([verdict for verdict in batch if not verdict.done.done()])
        except Fenced:
            if not self._closing.is_set() and self._writer.is_assigned:
                return False
            raise
        return True

    async def _all_or_each(self, batch: list[PendingSettlement]) -> None:
        """All together; when that fails one of them may be at fault: each alone, so that only it hears of it."""
        try:
            await self._once(batch)
        except Fenced:
            raise
        except BrokerError:
            for verdict in batch:
                await self._alone(verdict)

    async def _alone(self, verdict: PendingSettlement) -> None:
        try:
            await self._once([verdict])
        except Fenced:
            raise
        except BrokerError as error:
            self._fail([verdict], error)

    async def _once(self, batch: list[PendingSettlement]) -> None:
        if not self._sound:
            await self._writer.recover()
        self._sound = False  # until we know better
        left = [verdict for verdict in batch if not self._writer.is_settled(verdict.offset)]
        if left:
            self._noted = False
            await self._writer.write(left)
        elif self._noted and not batch:
            self._noted = False
            await self._writer.write_attempts()
        self._sound = True
        for verdict in batch:
            if not verdict.done.done():
                verdict.done.set_result(None)

    @staticmethod
    def _fail(batch: Sequence[PendingSettlement], error: BrokerError) -> None:
        for verdict in batch:
            if not verdict.done.done():
                verdict.done.set_exception(error)
                verdict.done.exception()  # whoever settled may be gone by now
