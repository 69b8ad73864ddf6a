"""One whole Replay: freeze every window, send canary letters, replay the partitions, verify, finish.

All windows are frozen, and written to the ledger, before the first letter is sent. So a letter that fails again is
never inside the window of another partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import CommitBatch
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress, Skip, Span, finish_reason
from deadletter.workers.backoff import RetryBudget, wait_for_event
from deadletter.workers.exit_status import FAILED, FINISHED, STOPPED, ExitStatus, ReplayFailed, total_counts
from deadletter.workers.replay.context import ReplayContext
from deadletter.workers.replay.failed_again import FailedAgainCounter
from deadletter.workers.replay.partition import PartitionReplay, is_window_read
from deadletter.workers.replay.session import PartitionSession
from deadletter.workers.replay.sinks import BrokerSink, Undelivered

WATCH_INTERVAL_S = 10.0
STOP_REQUESTED = ExitStatus(
    STOPPED, "Stopped", "The pod was asked to stop. Its progress is saved; another pod continues."
)


class ReplayRun:
    """Runs one Replay over the sessions of all partitions."""

    def __init__(self, context: ReplayContext, sessions: Sequence[PartitionSession]) -> None:
        self._context = context
        self._sessions = sessions
        self._spec = context.assignment.spec
        self._failed_again: FailedAgainCounter | None = None

    @property
    def _progress(self) -> list[PartitionProgress]:
        return self._context.quota.progress

    async def run(self, window: Sequence[Span]) -> ExitStatus:
        """Run the Replay, or continue it, until it ends or is stopped."""
        try:
            return await self._run({span.partition: span for span in window})
        except ReplayFailed as failed:
            await self._set_phase("Failed", failed.reason, str(failed))
            return ExitStatus(FAILED, failed.reason, str(failed), total_counts(self._progress))
        finally:
            for session in self._sessions:
                await session.close()

    async def _run(self, window: dict[int, Span]) -> ExitStatus:
        now = self._context.clock()
        await self._for_each_partition(lambda session: self._freeze_window(session, window[session.partition], now))
        if self._context.is_stopping:
            return STOP_REQUESTED
        for progress in self._progress:
            if progress.phase == "Failed":
                raise ReplayFailed(progress.reason, progress.message)
        if not all(progress.phase == "Finished" for progress in self._progress):
            await self._replay_and_verify()
        if self._context.is_stopping:
            return STOP_REQUESTED
        reason = self._finish_reason()
        await self._set_phase("Finished", reason)
        return ExitStatus(FINISHED, reason, "", total_counts(self._progress))

    async def _replay_and_verify(self) -> None:
        if self._spec.canary is not None and self._context.publishes:
            await self._send_canary_steps()
        await self._replay_partitions()
        self._fail_if_expired()
        if self._spec.verify is not None and self._context.publishes:
            await self._watch_failures("Verifying", self._spec.verify.window_ms, self._spec.verify.max_failure_share)
        elif self._context.sink is not None and (refused := sum(one.failed_again for one in self._progress)):
            sent = sum(progress.replayed for progress in self._progress)
            message = (
                f"The service rejected {refused} of {sent} letters; they are still open in the dead box. "
                "Replay them again when the service accepts them."
            )
            raise ReplayFailed(Reason.DeliveryFailed, message)

    async def _freeze_window(self, session: PartitionSession, span: Span, now: int) -> None:
        await session.open()
        if session.progress is None:
            await session.commit(CommitBatch(PartitionProgress(span, now, span.start, updated_at=now)))
        await self._close_if_surplus(session)

    async def _close_if_surplus(self, session: PartitionSession) -> None:
        """Keep sessions open only if no more than `parallelism` are open then."""
        if len(self._sessions) > self._spec.parallelism:
            await session.close()

    async def _send_canary_steps(self) -> None:
        canary, quota = self._spec.canary, self._context.quota
        if canary is None or all(is_window_read(one) and one.phase != "Waiting" for one in self._progress):
            return
        for step in canary.steps:
            if quota.sent > step or self._context.is_stopping:
                continue
            quota.canary_step = step
            await self._replay_partitions()
            await self._watch_failures("Waiting", canary.wait_ms, canary.max_failure_share)
            if all(is_window_read(progress) for progress in self._progress):
                break
        quota.canary_step = None
        if not self._context.is_stopping:
            await self._set_phase("Running")

    async def _replay_partitions(self) -> None:
        quota = self._context.quota
        is_limited = quota.limit is not None or quota.canary_step is not None
        await self._for_each_partition(self._replay_partition, 1 if is_limited else self._spec.parallelism)

    async def _replay_partition(self, session: PartitionSession) -> None:
        await session.open()
        progress = session.progress
        if progress is not None and (not is_window_read(progress) or self._has_unreported_ids(progress)):
            await PartitionReplay(self._context, session, progress).run()
        await self._close_if_surplus(session)

    def _has_unreported_ids(self, progress: PartitionProgress) -> bool:
        """True if the window is empty, letters of it are replayed by id, and none has a result yet."""
        offsets = self._context.explicit_offsets or {}
        span = progress.span
        return bool(offsets.get(span.partition)) and span.start == span.end and not progress.matched

    async def _for_each_partition(
        self, work: Callable[[PartitionSession], Awaitable[None]], parallelism: int | None = None
    ) -> None:
        """Do the work for every partition, some at once, in order; if one fails, the others end after their batch."""
        slots = asyncio.Semaphore(parallelism or self._spec.parallelism)

        async def do_work(session: PartitionSession) -> None:
            async with slots:
                try:
                    await self._retry(session, work)
                except BaseException:
                    self._context.is_halted = True
                    raise

        results = await asyncio.gather(*(do_work(session) for session in self._sessions), return_exceptions=True)
        self._context.is_halted = False
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _retry(self, session: PartitionSession, work: Callable[[PartitionSession], Awaitable[None]]) -> None:
        """Continue from the ledger after a transient error, until the retry budget is spent without progress."""
        budget = RetryBudget()
        while not self._context.is_stopping:
            before = session.progress
            try:
                await work(session)
            except (BrokerError, Undelivered) as error:
                await session.close()
                await self._sleep(budget.delay_after(error, has_progressed=before != session.progress))
            else:
                return

    async def _sleep(self, seconds: float) -> None:
        await wait_for_event(self._context.stop, seconds)

    async def _set_phase(self, phase: str, reason: str = "", message: str = "") -> None:
        async def write(session: PartitionSession) -> None:
            await session.open()
            before = session.progress
            if before is not None and (before.phase, before.reason) != (phase, reason):
                after = before.evolve(phase=phase, reason=reason, message=message, updated_at=self._context.clock())
                await session.commit(CommitBatch(after))
            await self._close_if_surplus(session)

        await self._for_each_partition(write)

    async def _watch_failures(self, phase: str, duration_ms: int, max_failure_share: int) -> None:
        """Count letters that fail again for this long; fail the Replay above the share. Skip it if nothing was sent."""
        if self._context.is_stopping or not self._context.quota.sent:
            return
        await self._set_phase(phase)
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_ms / 1000
        while not self._context.stop.is_set():
            await self._sleep(max(0.0, min(WATCH_INTERVAL_S, end - loop.time())))
            is_last = loop.time() >= end
            await self._check_failure_share(max_failure_share)
            if is_last:
                return

    async def _check_failure_share(self, max_failure_share: int) -> None:
        if self._context.assignment.target.kind != "Service":
            await self._count_failed_again()
        failed, sent = sum(progress.failed_again for progress in self._progress), self._context.quota.sent
        if failed * 100 > max_failure_share * sent:
            message = (
                f"{failed} of {sent} letters failed again: more than {max_failure_share} percent, the maxFailureShare. "
                "Repair the consumer, then create a new Replay."
            )
            raise ReplayFailed(Reason.FailureShareExceeded, message)

    async def _count_failed_again(self) -> None:
        """Write to the progress of each partition how many of its letters failed again.

        Letters in partitions without a session, as in another queue's box, count for our first partition.
        """
        if self._failed_again is None:
            sink = self._context.sink
            target_broker = sink.broker if isinstance(sink, BrokerSink) else None
            self._failed_again = FailedAgainCounter(
                self._context.broker, self._context.assignment, self._window_ends(), target_broker
            )
        found = await self._failed_again.count()
        own = {session.partition for session in self._sessions}
        elsewhere = sum(letters for partition, letters in found.items() if partition not in own)
        first = min(own)

        async def write(session: PartitionSession) -> None:
            letters = found.get(session.partition, 0) + (elsewhere if session.partition == first else 0)
            if session.progress is not None and session.progress.failed_again != letters:
                await session.open()
                after = session.progress.evolve(failed_again=letters, updated_at=self._context.clock())
                await session.commit(CommitBatch(after))
                await self._close_if_surplus(session)

        await self._for_each_partition(write)

    def _window_ends(self) -> dict[int, int]:
        # On Redis the archive is another stream: its window says nothing about the dead box.
        if self._context.reads_archive:
            return {}
        return {progress.span.partition: progress.span.end for progress in self._progress}

    def _fail_if_expired(self) -> None:
        expired = sum(progress.skipped.get(Skip.Expired.value, 0) for progress in self._progress)
        if expired and self._context.explicit_offsets is None and not self._context.is_stopping:
            message = (
                f"Retention deleted {expired} letters before they were replayed. "
                "Raise dead.retention or replay earlier."
            )
            raise ReplayFailed(Reason.WindowExpired, message)

    def _finish_reason(self) -> str:
        if self._context.is_dry_run:
            return Reason.DryRunFinished
        matched = sum(progress.matched for progress in self._progress)
        return finish_reason(self._spec.action, matched, sum(progress.processed for progress in self._progress))
