"""The standing walk: tail the dead box, keep what is retryable until it is due, send it back to its origin.

Nothing here needs to survive: after a restart the box is read from its start, and the ledger says what was sent. A
mover is held only while letters are sent, so that a Replay of the same box may take over at any time.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace

from deadletter import logs
from deadletter.api.assignments import RedriveAssignment, ReplayAssignment, ReplayTarget
from deadletter.api.base import NameRef
from deadletter.api.replays import ReplaySpec
from deadletter.brokers.contract import Broker, PartitionWriter
from deadletter.brokers.errors import BrokerError, Fenced, TooLarge
from deadletter.brokers.types import CommitBatch
from deadletter.core.cel import Predicate
from deadletter.core.dialects.reader import read_letter
from deadletter.core.letters import Letter, failure_time
from deadletter.core.policy import Retry, decide
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.workers import metrics
from deadletter.workers.exit_status import STOPPED, ExitStatus, status_of_broker_error
from deadletter.workers.redrive.feedback_guard import FeedbackGuard
from deadletter.workers.redrive.pause_status import PauseReporter
from deadletter.workers.redrive.rounds import (
    MAX_NAMED_ROUND,
    UID_PREFIX,
    Rounds,
    can_recognise_return,
    max_rounds,
    round_uid,
)
from deadletter.workers.replay.batch import MAX_BATCH_BYTES, MAX_BATCH_LETTERS, ReplayBatch
from deadletter.workers.replay.letter_results import LetterResult, add_results
from deadletter.workers.replay.publication import PublicationBuilder

TURN_S = 5.0
FENCED_S = 30.0
STAYING_MS = 60_000  # between two looks whether letters that stay are settled
GATE_MS = 180_000  # a gate that the operator shuts is known to the pod by then
ENDED = ("Finished", "Failed")
WAITING = 100_000
Waiting = tuple[int, int, int]  # due, offset, round


def round_assignment(assignment: RedriveAssignment, round_: int) -> ReplayAssignment:
    """A round is a Replay of single letters to their origin."""
    return ReplayAssignment(
        namespace=assignment.namespace,
        name=round_uid(round_),
        uid=round_uid(round_),
        queue=assignment.queue,
        broker=assignment.broker,
        boxes=assignment.boxes,
        dialect=assignment.dialect,
        read_values=assignment.read_values,
        origin=assignment.origin,
        spec=ReplaySpec(queue_ref=NameRef(name=assignment.queue), max_replays=1000),
        target=ReplayTarget(kind="Origin"),
        allow=assignment.allow,
    )


class Redriver:
    """Redrives one dead box until it is told to stop; `gate` is the reason to pause, or nothing."""

    def __init__(
        self,
        assignment: RedriveAssignment,
        broker: Broker,
        stop: asyncio.Event,
        clock: Callable[[], int],
        gate: Callable[[], str] = str,
        pod: str = "redrive",
    ) -> None:
        self._told, self._broker, self._stop, self._clock, self._gate = assignment, broker, stop, clock, gate
        self._named = (assignment.namespace, assignment.queue)
        self._policy = assignment.policy.policy()
        self._where = Predicate.cached(assignment.where) if assignment.where else None
        self._rounds = Rounds(broker, assignment.boxes.ledger, max_rounds(self._policy))
        self._tide = FeedbackGuard(self._policy.budget)
        self._next: dict[int, int] = {}
        self._waiting: dict[int, list[Waiting]] = {}
        self._staying: dict[int, set[int]] = {}  # went back as often as the policy allows
        self._looked = 0
        self._by_others = 0
        self._reading = (assignment.dialect, assignment.read_values, assignment.origin)
        self._pauses = PauseReporter(broker, assignment.boxes, pod, self._named)
        self._log = logs.get(__name__)

    @property
    def pause_reason(self) -> str:
        """Why nothing is sent back now, or nothing."""
        return self._pauses.reason

    async def run(self) -> ExitStatus:
        """Turn after turn."""
        while not self._stop.is_set():
            wait = TURN_S
            try:
                await self.run_once()
            except BrokerError as error:
                if not error.is_transient and not isinstance(error, Fenced):
                    return status_of_broker_error(error)
                self._log.warning("waiting for the broker", error=type(error).__name__)
                wait = FENCED_S if isinstance(error, Fenced) else TURN_S
            await self._rest(wait)
        await self._pauses.withdraw()
        return ExitStatus(STOPPED, "Stopped")

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def run_once(self) -> int:
        """Read what is new, send what is due; how many were sent."""
        spans = await self._broker.window(self._told.boxes.dead)
        await self._tail(spans)
        now = self._clock()
        await self._count_staying(spans, now)
        metrics.REDRIVE_WAITING.labels(*self._named).set(sum(map(len, self._waiting.values())))
        await self._pauses.report(self._gate() or self._tide.pause_reason(now) or await self._makes_way(now), now)
        if self.pause_reason:
            return 0
        return sum([await self._send_due(span, now) for span in spans])

    async def _count_staying(self, spans: Iterable[Span], now: int) -> None:
        """Look again at those that stay once Replays have settled more letters, or fewer are known."""
        if any(self._staying.values()) and now - self._looked >= STAYING_MS:
            self._looked = now
            done = sum(tally.replayed + tally.archived + tally.discarded for tally in await self._others())
            if done != self._by_others:
                settled = await self._broker.settled_offsets(self._told.boxes.dead, self._told.boxes.ledger)
                for span in spans:
                    gone = settled.get(span.partition, ())
                    left = {offset for offset in self._staying.get(span.partition, ()) if offset not in gone}
                    self._staying[span.partition] = {letter.place.offset async for letter in self._read(span, left)}
                self._by_others = done
        metrics.REDRIVE_EXHAUSTED.labels(*self._named).set(sum(map(len, self._staying.values())))

    async def _others(self) -> list[PartitionProgress]:
        """What Replays of this queue have counted."""
        counted = await self._broker.replay_progress(self._told.boxes.ledger)
        return [tally for uid_, found in counted.items() if not uid_.startswith(UID_PREFIX) for tally in found]

    async def _makes_way(self, now: int) -> str:
        """A Replay that began lately would be fenced by us; of one that goes on for long the gate tells."""
        if not any(waiting and waiting[0][0] <= now for waiting in self._waiting.values()):
            return ""
        runs = any(one.phase not in ENDED and now - one.updated_at < GATE_MS for one in await self._others())
        return Reason.Queued if runs else ""

    async def _tail(self, spans: Iterable[Span]) -> None:
        fresh = [replace(span, start=max(span.start, self._next.get(span.partition, 0))) for span in spans]
        fresh = [span for span in fresh if span.start < span.end and self._has_room(span.partition)]
        if not fresh:
            return
        boxes = self._told.boxes
        settled = await self._broker.settled_offsets(boxes.dead, boxes.ledger)
        await self._rounds.refresh()
        for span in fresh:
            done = settled.get(span.partition, ())
            async with aclosing(self._broker.read(boxes.dead, [span])) as batches:
                async for batch in batches:
                    for taken in batch:
                        if taken.place.offset not in done:
                            self._consider(read_letter(taken.message, taken.place, *self._reading))
                        self._next[span.partition] = taken.place.offset + 1
                    if self._stop.is_set() or not self._has_room(span.partition):
                        return
            self._next[span.partition] = span.end

    def _has_room(self, partition: int) -> bool:
        return len(self._waiting.get(partition, ())) < WAITING

    def _consider(self, letter: Letter) -> None:
        """Keep the letter until its backoff is over, if the policy would retry it."""
        known, now = letter.envelope, self._clock()
        died = failure_time(letter) or now
        self._tide.record_failure(died)
        round_ = self._rounds.next_round(known)
        if round_ > 1:
            self._tide.record_returned(1, now)
        if known.origin.topic in (None, letter.place.box) or not can_recognise_return(known):
            return
        if self._where is not None and self._where.matches(letter, now) is not True:
            return
        counted = Letter(letter.message, letter.place, replace(known, attempts=round_))
        verdict = decide(counted, self._policy, died, random.random())  # noqa: S311 a spread, not a secret
        partition, offset = letter.place.partition, letter.place.offset
        if isinstance(verdict, Retry):
            heapq.heappush(self._waiting.setdefault(partition, []), (verdict.at, offset, round_))
        elif verdict.reason == Reason.AttemptsExhausted and len(self._staying.get(partition, ())) < WAITING:
            self._staying.setdefault(partition, set()).add(offset)

    async def _send_due(self, span: Span, now: int) -> int:
        due = self._take_due(span.partition, now)
        sent = 0
        try:
            for round_ in sorted({one[2] for one in due}):
                sent += await self._send(span, round_, {offset for _, offset, its in due if its == round_})
        except BrokerError:
            for one in due:  # the ledger knows which of them are sent
                heapq.heappush(self._waiting[span.partition], one)
            raise
        return sent

    def _take_due(self, partition: int, now: int) -> list[Waiting]:
        waiting = self._waiting.get(partition, [])
        due: list[Waiting] = []
        while waiting and waiting[0][0] <= now and len(due) < MAX_BATCH_LETTERS:
            due.append(heapq.heappop(waiting))
        return due

    async def _read(self, span: Span, offsets: set[int]) -> AsyncGenerator[Letter]:
        """These letters, in their order."""
        if not offsets:
            return
        part = Span(span.partition, max(span.start, min(offsets)), max(offsets) + 1)
        async with aclosing(self._broker.read(self._told.boxes.dead, [part])) as batches:
            async for batch in batches:
                for taken in batch:
                    if taken.place.offset in offsets:
                        yield read_letter(taken.message, taken.place, *self._reading)

    async def _send(self, span: Span, round_: int, offsets: set[int]) -> int:
        """Send them; one that its origin does not take stays and hinders no other."""
        sent = 0
        try:
            async for letters in self._move(span, round_, offsets):
                sent += letters
        except TooLarge:
            if len(offsets) == 1:
                self._log.warning("a letter exceeds what its origin takes", partition=span.partition)
                return 0
            ordered = sorted(offsets)  # those that went before are no longer open
            for half in (ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]):
                sent += await self._send(span, round_, set(half))
        return sent

    async def _move(self, span: Span, round_: int, offsets: set[int]) -> AsyncGenerator[int]:
        """Step after step, how many went. What another settled before the fence is seen as settled, or is gone."""
        boxes, batch = self._told.boxes, ReplayBatch()
        drafter = PublicationBuilder(round_assignment(self._told, round_), self._broker, self._clock)
        async with self._broker.partition_writer(boxes.dead, boxes.ledger, span.partition, round_uid(round_)) as mover:
            tally = mover.progress or PartitionProgress(span, self._clock(), span.start)
            still = {offset for offset in offsets if mover.is_open(offset)}
            async with aclosing(self._read(span, still)) as letters:
                async for letter in letters:
                    # A pod has little memory, and what fell due during an outage is sent at once.
                    if batch.taken and batch.taken_bytes + letter.message.size > MAX_BATCH_BYTES:
                        tally = await self._commit(mover, tally, round_, batch)
                        yield batch.taken
                        batch = ReplayBatch()
                    batch.add(await self._draft(drafter, letter, round_))
            await self._commit(mover, tally, round_, batch)
            yield batch.taken

    async def _commit(
        self, mover: PartitionWriter, tally: PartitionProgress, round_: int, batch: ReplayBatch
    ) -> PartitionProgress:
        """What there is to send in one step; the tally after it."""
        sent, now = [one for one in batch.results if one.publication is not None], self._clock()
        if not sent:
            return tally
        step = self._step(tally, sent, now)
        self._rounds.invalidate(round_)  # before, for nobody knows what became of a commit that fails
        await mover.commit(step)
        self._tide.record_sent(len(sent), now)
        metrics.REDRIVE_LETTERS.labels(*self._named, str(min(round_, MAX_NAMED_ROUND))).inc(len(sent))
        self._log.info("letters went back", letters=len(sent), round=round_, partition=tally.span.partition)
        return step.progress

    @staticmethod
    async def _draft(drafter: PublicationBuilder, letter: Letter, round_: int) -> LetterResult:
        if drafter.needs_origin_lookup(letter):
            await drafter.look_up_origin(letter)
        letter.envelope.replays = round_ - 1
        return drafter.build(letter, 1)

    @staticmethod
    def _step(tally: PartitionProgress, sent: list[LetterResult], now: int) -> CommitBatch:
        following = max(tally.next, sent[-1].offset + 1)
        after = add_results(tally, sent, len(sent), following, "replayed", now)
        published = [one.publication for one in sent if one.publication is not None]
        return CommitBatch(after, published, {SettledAs.Replayed: [one.offset for one in sent]})
