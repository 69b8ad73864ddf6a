"""The course of a Replay: freeze every window, send canaries, walk, verify, finish.

All windows are frozen, and written, before the first letter is sent: a letter that fails again can then never lie in
the window of another partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import CommitBatch
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress, Skip, Span
from deadletter.workers.backoff import RetryBudget, wait_for_event
from deadletter.workers.exit_status import FAILED, FINISHED, STOPPED, ExitStatus, ReplayFailed, total_counts
from deadletter.workers.replay.context import ReplayContext
from deadletter.workers.replay.failed_again import FailedAgainCounter
from deadletter.workers.replay.partition import PartitionReplay, is_window_read
from deadletter.workers.replay.session import PartitionSession
from deadletter.workers.replay.sinks import BrokerCarrier, Undelivered

WATCH_S = 10.0
STOP_REQUESTED = ExitStatus(STOPPED, "Stopped", "Asked to stop; the tallies are whole and another pod goes on.")


class ReplayRun:
    """One Replay from its window to its last word."""

    def __init__(self, errand: ReplayContext, seats: Sequence[PartitionSession]) -> None:
        self._errand = errand
        self._seats = seats
        self._spec = errand.assignment.spec
        self._returns: FailedAgainCounter | None = None

    @property
    def _tallies(self) -> list[PartitionProgress]:
        return self._errand.quota.progress

    async def run(self, window: Sequence[Span]) -> ExitStatus:
        """To the end, or to the stop."""
        try:
            return await self._run({span.partition: span for span in window})
        except ReplayFailed as failed:
            await self._say("Failed", failed.reason, str(failed))
            return ExitStatus(FAILED, failed.reason, str(failed), total_counts(self._tallies))
        finally:
            for seat in self._seats:
                await seat.close()

    async def _run(self, window: dict[int, Span]) -> ExitStatus:
        now = self._errand.clock()
        await self._each(lambda seat: self._freeze(seat, window[seat.partition], now))
        if self._errand.is_stopping:
            return STOP_REQUESTED
        for tally in self._tallies:
            if tally.phase == "Failed":
                raise ReplayFailed(tally.reason, tally.message)
        if not all(tally.phase == "Finished" for tally in self._tallies):
            await self._work()
        if self._errand.is_stopping:
            return STOP_REQUESTED
        reason = self._reason()
        await self._say("Finished", reason)
        return ExitStatus(FINISHED, reason, "", total_counts(self._tallies))

    async def _work(self) -> None:
        if self._spec.canary is not None and self._errand.publishes:
            await self._send_canaries()
        await self._walk()
        self._mind_losses()
        if self._spec.verify is not None and self._errand.publishes:
            await self._watch("Verifying", self._spec.verify.window_ms, self._spec.verify.max_failure_share)
        elif self._errand.carrier is not None and (refused := sum(tally.failed_again for tally in self._tallies)):
            sent = sum(tally.replayed for tally in self._tallies)
            sentence = f"The service did not take {refused} of {sent} letters; they are still in the dead box."
            raise ReplayFailed(Reason.DeliveryFailed, sentence)

    async def _freeze(self, seat: PartitionSession, span: Span, now: int) -> None:
        await seat.open()
        if seat.progress is None:
            await seat.commit(CommitBatch(PartitionProgress(span, now, span.start, updated_at=now)))
        await self._let_go(seat)

    async def _let_go(self, seat: PartitionSession) -> None:
        if len(self._seats) > self._spec.parallelism:
            await seat.close()

    async def _send_canaries(self) -> None:
        canary, quota = self._spec.canary, self._errand.quota
        if canary is None or all(is_window_read(tally) and tally.phase != "Waiting" for tally in self._tallies):
            return
        for step in canary.steps:
            if quota.sent > step or self._errand.is_stopping:
                continue
            quota.canary_step = step
            await self._walk()
            await self._watch("Waiting", canary.wait_ms, canary.max_failure_share)
            if all(is_window_read(tally) for tally in self._tallies):
                break
        quota.canary_step = None
        if not self._errand.is_stopping:
            await self._say("Running")

    async def _walk(self) -> None:
        quota = self._errand.quota
        in_order = quota.limit is not None or quota.canary_step is not None
        await self._each(self._walk_one, 1 if in_order else self._spec.parallelism)

    async def _walk_one(self, seat: PartitionSession) -> None:
        await seat.open()
        tally = seat.progress
        if tally is not None and (not is_window_read(tally) or self._is_missed(tally)):
            await PartitionReplay(self._errand, seat, tally).run()
        await self._let_go(seat)

    def _is_missed(self, tally: PartitionProgress) -> bool:
        """Is it an empty window of which letters are asked by name, and none of them is accounted for yet?"""
        named = self._errand.explicit_offsets or {}
        return bool(named.get(tally.span.partition)) and tally.span.start == tally.span.end and not tally.matched

    async def _each(self, work: Callable[[PartitionSession], Awaitable[None]], at_once: int | None = None) -> None:
        """Do it for every partition, some at once and in their order; when one fails the others end their step."""
        slots = asyncio.Semaphore(at_once or self._spec.parallelism)

        async def visit(seat: PartitionSession) -> None:
            async with slots:
                try:
                    await self._insist(seat, work)
                except BaseException:
                    self._errand.is_halted = True
                    raise

        done = await asyncio.gather(*(visit(seat) for seat in self._seats), return_exceptions=True)
        self._errand.is_halted = False
        for fault in done:
            if isinstance(fault, BaseException):
                raise fault

    async def _insist(self, seat: PartitionSession, work: Callable[[PartitionSession], Awaitable[None]]) -> None:
        """Go on from the ledger after an error that time mends, unless there is no progress."""
        patience = RetryBudget()
        while not self._errand.is_stopping:
            before = seat.progress
            try:
                await work(seat)
            except (BrokerError, Undelivered) as error:
                await seat.close()
                await self._sleep(patience.wait_after(error, moved=before != seat.progress))
            else:
                return

    async def _sleep(self, seconds: float) -> None:
        await wait_for_event(self._errand.stop, seconds)

    async def _say(self, phase: str, reason: str = "", message: str = "") -> None:
        async def write(seat: PartitionSession) -> None:
            await seat.open()
            tally = seat.progress
            if tally is not None and (tally.phase, tally.reason) != (phase, reason):
                said = tally.evolve(phase=phase, reason=reason, message=message, updated_at=self._errand.clock())
                await seat.commit(CommitBatch(said))
            await self._let_go(seat)

        await self._each(write)

    async def _watch(self, phase: str, duration: int, share: int) -> None:
        """Look at what comes back for this long; over the share, the Replay has failed. Nothing sent: nothing does."""
        if self._errand.is_stopping or not self._errand.quota.sent:
            return
        await self._say(phase)
        loop = asyncio.get_running_loop()
        end = loop.time() + duration / 1000
        while not self._errand.stop.is_set():
            await self._sleep(max(0.0, min(WATCH_S, end - loop.time())))
            is_last = loop.time() >= end
            await self._judge(share)
            if is_last:
                return

    async def _judge(self, share: int) -> None:
        if self._errand.assignment.target.kind != "Service":
            await self._count_returns()
        failed, sent = sum(tally.failed_again for tally in self._tallies), self._errand.quota.sent
        if failed * 100 > share * sent:
            sentence = f"{failed} of {sent} letters failed again: more than {share} percent."
            raise ReplayFailed(Reason.FailureShareExceeded, sentence)

    async def _count_returns(self) -> None:
        if self._returns is None:
            carrier = self._errand.carrier
            there = carrier.broker if isinstance(carrier, BrokerCarrier) else None
            self._returns = FailedAgainCounter(self._errand.broker, self._errand.assignment, self._starts(), there)
        found = await self._returns.count()
        own = {seat.partition for seat in self._seats}
        strays = sum(letters for partition, letters in found.items() if partition not in own)
        first = min(own)

        async def note(seat: PartitionSession) -> None:
            letters = found.get(seat.partition, 0) + (strays if seat.partition == first else 0)
            if seat.progress is not None and seat.progress.failed_again != letters:
                await seat.open()
                tally = seat.progress
                await seat.commit(CommitBatch(tally.evolve(failed_again=letters, updated_at=self._errand.clock())))
                await self._let_go(seat)

        await self._each(note)

    def _starts(self) -> dict[int, int]:
        # An archive is another stream on Redis: its window says nothing about the dead box.
        if self._errand.reads_archive:
            return {}
        return {tally.span.partition: tally.span.end for tally in self._tallies}

    def _mind_losses(self) -> None:
        gone = sum(tally.skipped.get(Skip.Expired.value, 0) for tally in self._tallies)
        if gone and self._errand.explicit_offsets is None and not self._errand.is_stopping:
            raise ReplayFailed(Reason.WindowExpired, f"Retention ate {gone} letters of the window before their turn.")

    def _reason(self) -> str:
        if self._errand.is_dry_run:
            return Reason.DryRunFinished
        matched = sum(tally.matched for tally in self._tallies)
        return Reason.AllReplayed if matched else Reason.NothingMatched
