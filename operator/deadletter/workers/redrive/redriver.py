"""The redrive loop: read the dead box, keep retryable letters until they are due, send them back to their origin.

The redriver stores nothing: after a restart it reads the box from its start, and the ledger says what was sent.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import replace

from deadletter import logs
from deadletter.api.worker_config import Boxes, RedriveAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.core.cel import Predicate
from deadletter.core.dialects.reader import read_letter
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Letter, failure_time
from deadletter.core.policy import Retry, decide
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress, Span
from deadletter.workers import metrics
from deadletter.workers.backoff import wait_for_event
from deadletter.workers.exit_status import STOPPED, ExitStatus, status_of_broker_error
from deadletter.workers.heartbeat import StatusWriter
from deadletter.workers.redrive.feedback_guard import FeedbackGuard
from deadletter.workers.redrive.rounds import UID_PREFIX, Rounds, can_recognise_return, max_rounds
from deadletter.workers.redrive.sender import RoundSender
from deadletter.workers.replay.batch_results import MAX_BATCH_LETTERS

POLL_INTERVAL_S = 5.0
FENCED_DELAY_S = 30.0
EXHAUSTED_REFRESH_MS = 60_000
REPLAY_FRESH_MS = 180_000  # older Replays pause the redrive through live.json, which has reached the pod by then
MAX_WAITING = 100_000  # letters of one partition
ENDED_PHASES = ("Finished", "Failed")
PAUSE_MESSAGES: dict[str, str] = {
    Reason.ErrorBudgetSpent: "The error budget is spent. The redrive continues when fewer letters fail.",
    Reason.FailureShareExceeded: "Letters fail again faster than they are sent back. The redrive continues when "
    "fewer letters return; repair the consumer.",
}
WaitingLetter = tuple[int, int, int]  # due time in ms, offset, round


class PauseReporter:
    """Reports why a redriver is paused, `reason`, to the ledger, where the operator reads it, and to the metrics."""

    def __init__(self, broker: Broker, boxes: Boxes, pod: str, labels: tuple[str, str]) -> None:
        self._pod, self._labels = pod, labels
        self._writer = StatusWriter(
            lambda status: broker.report_status(boxes.dead, boxes.ledger, pod, status),
            lambda: broker.report_status(boxes.dead, boxes.ledger, pod, None),
        )
        self._log = logs.get(__name__)
        self.reason = ""

    async def report(self, reason: str, now: int) -> None:
        """Report the reason of the pause, or with an empty reason that there is none."""
        if reason != self.reason:
            if reason:
                self._log.info("redrive paused", reason=str(reason))
            else:
                self._log.info("redrive resumed")
            if self.reason:
                metrics.REDRIVE_PAUSED.labels(*self._labels, str(self.reason)).set(0)
        if reason:
            metrics.REDRIVE_PAUSED.labels(*self._labels, str(reason)).set(1)
        self.reason = reason
        if reason in PAUSE_MESSAGES:  # other reasons come from the operator
            message = PAUSE_MESSAGES[reason]
            await self._writer.write(WorkerStatus(self._pod, paused=str(reason), message=message, at=now))
        else:
            await self.withdraw()

    async def withdraw(self) -> None:
        """Remove the reported status from the ledger."""
        await self._writer.withdraw()


class Redriver:
    """Redrives one dead box until it is stopped; `gate` returns the operator's reason to pause, or an empty string."""

    def __init__(
        self,
        assignment: RedriveAssignment,
        broker: Broker,
        stop: asyncio.Event,
        clock: Callable[[], int],
        gate: Callable[[], str] = str,
        pod: str = "redrive",
    ) -> None:
        self._broker, self._stop, self._clock, self._gate = broker, stop, clock, gate
        self._boxes = assignment.boxes
        self._dialect = (assignment.dialect, assignment.read_values, assignment.origin)
        self._labels = (assignment.namespace, assignment.queue)
        self._policy = assignment.policy.to_policy()
        self._where = Predicate.cached(assignment.where) if assignment.where else None
        self._rounds = Rounds(broker, assignment.boxes.ledger, max_rounds(self._policy))
        self._guard = FeedbackGuard(self._policy.budget)
        self._sender = RoundSender(assignment, broker, clock, self._rounds, self._guard)
        self._pauses = PauseReporter(broker, assignment.boxes, pod, self._labels)
        self._next: dict[int, int] = {}
        self._waiting: dict[int, list[WaitingLetter]] = {}
        self._exhausted: dict[int, set[int]] = {}  # sent back as often as the policy allows
        self._exhausted_checked = 0
        self._settled_by_replays = 0
        self._log = logs.get(__name__)

    @property
    def pause_reason(self) -> str:
        """Why nothing is sent back now, or an empty string."""
        return self._pauses.reason

    async def run(self) -> ExitStatus:
        """Work until stopped or until an error that is not transient."""
        while not self._stop.is_set():
            delay = POLL_INTERVAL_S
            try:
                await self.run_once()
            except BrokerError as error:
                if not error.is_transient and not isinstance(error, Fenced):
                    return status_of_broker_error(error)
                self._log.warning("broker request failed", error=type(error).__name__)
                delay = FENCED_DELAY_S if isinstance(error, Fenced) else POLL_INTERVAL_S
            await wait_for_event(self._stop, delay)
        await self._pauses.withdraw()
        return ExitStatus(STOPPED, "Stopped")

    async def run_once(self) -> int:
        """Read new letters, send those that are due and return how many were sent."""
        spans = await self._broker.window(self._boxes.dead)
        await self._read_new(spans)
        now = self._clock()
        await self._refresh_exhausted(spans, now)
        metrics.REDRIVE_WAITING.labels(*self._labels).set(sum(map(len, self._waiting.values())))
        reason = self._gate() or self._guard.pause_reason(now) or await self._running_replay_reason(now)
        await self._pauses.report(reason, now)
        if self.pause_reason:
            return 0
        return sum([await self._send_due(span, now) for span in spans])

    async def _refresh_exhausted(self, spans: Iterable[Span], now: int) -> None:
        """Remove exhausted letters that are settled; look only after Replays have settled more letters."""
        if any(self._exhausted.values()) and now - self._exhausted_checked >= EXHAUSTED_REFRESH_MS:
            self._exhausted_checked = now
            replays = await self._replay_progress()
            settled_by_replays = sum(one.replayed + one.archived + one.discarded for one in replays)
            if settled_by_replays != self._settled_by_replays:
                settled = await self._broker.settled_offsets(self._boxes.dead, self._boxes.ledger)
                for span in spans:
                    gone = settled.get(span.partition, ())
                    left = {offset for offset in self._exhausted.get(span.partition, ()) if offset not in gone}
                    found = {letter.place.offset async for letter in self._sender.read(span, left)}
                    self._exhausted[span.partition] = found
                self._settled_by_replays = settled_by_replays
        metrics.REDRIVE_EXHAUSTED.labels(*self._labels).set(sum(map(len, self._exhausted.values())))

    async def _replay_progress(self) -> list[PartitionProgress]:
        """Return the progress of all Replays of this queue, without redrive rounds."""
        by_uid = await self._broker.replay_progress(self._boxes.ledger)
        return [one for uid, progress in by_uid.items() if not uid.startswith(UID_PREFIX) for one in progress]

    async def _running_replay_reason(self, now: int) -> str:
        """Pause for a Replay that began recently, which our writers would fence; a later pause comes by the gate."""
        if not any(waiting and waiting[0][0] <= now for waiting in self._waiting.values()):
            return ""
        is_running = any(
            one.phase not in ENDED_PHASES and now - one.updated_at < REPLAY_FRESH_MS
            for one in await self._replay_progress()
        )
        return Reason.Queued if is_running else ""

    async def _read_new(self, spans: Iterable[Span]) -> None:
        unread = [replace(span, start=max(span.start, self._next.get(span.partition, 0))) for span in spans]
        unread = [span for span in unread if span.start < span.end and self._has_room(span.partition)]
        if not unread:
            return
        settled = await self._broker.settled_offsets(self._boxes.dead, self._boxes.ledger)
        await self._rounds.refresh()
        for span in unread:
            done = settled.get(span.partition, ())
            async with aclosing(self._broker.read(self._boxes.dead, [span])) as chunks:
                async for chunk in chunks:
                    for stored in chunk:
                        if stored.place.offset not in done:
                            self._schedule(read_letter(stored.message, stored.place, *self._dialect))
                        self._next[span.partition] = stored.place.offset + 1
                    if self._stop.is_set() or not self._has_room(span.partition):
                        return
            self._next[span.partition] = span.end

    def _has_room(self, partition: int) -> bool:
        return len(self._waiting.get(partition, ())) < MAX_WAITING

    def _schedule(self, letter: Letter) -> None:
        """Keep the letter until the end of its backoff if the policy would retry it."""
        envelope, now = letter.envelope, self._clock()
        failed_at = failure_time(letter) or now
        self._guard.record_failure(failed_at)
        round_ = self._rounds.next_round(envelope)
        if round_ > 1:
            self._guard.record_returned(1, now)
        if envelope.origin.topic in (None, letter.place.box) or not can_recognise_return(envelope):
            return
        if self._where is not None and self._where.matches(letter, now) is not True:
            return
        counted = Letter(letter.message, letter.place, replace(envelope, attempts=round_))
        verdict = decide(counted, self._policy, failed_at, random.random())  # noqa: S311 (jitter, not a secret)
        partition, offset = letter.place.partition, letter.place.offset
        if isinstance(verdict, Retry):
            heapq.heappush(self._waiting.setdefault(partition, []), (verdict.at, offset, round_))
        elif verdict.reason == Reason.AttemptsExhausted and len(self._exhausted.get(partition, ())) < MAX_WAITING:
            self._exhausted.setdefault(partition, set()).add(offset)

    async def _send_due(self, span: Span, now: int) -> int:
        due = self._take_due(span.partition, now)
        sent = 0
        try:
            for round_ in sorted({one[2] for one in due}):
                offsets = {offset for _, offset, its_round in due if its_round == round_}
                sent += await self._sender.send(span, round_, offsets)
        except BrokerError:
            for one in due:  # put all back: the ledger tells the next writer which of them are sent
                heapq.heappush(self._waiting[span.partition], one)
            raise
        return sent

    def _take_due(self, partition: int, now: int) -> list[WaitingLetter]:
        waiting = self._waiting.get(partition, [])
        due: list[WaitingLetter] = []
        while waiting and waiting[0][0] <= now and len(due) < MAX_BATCH_LETTERS:
            due.append(heapq.heappop(waiting))
        return due
