"""Send due letters of one redrive round back to their origin, in batches of bounded size.

A partition's writer is open only while letters are sent, so that a Replay of the same box may take over at any time.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from deadletter import logs
from deadletter.api.base import NameRef
from deadletter.api.replays import ReplaySpec
from deadletter.api.worker_config import RedriveAssignment, ReplayAssignment, ReplayTarget
from deadletter.brokers.contract import Broker, PartitionWriter
from deadletter.brokers.errors import TooLarge
from deadletter.brokers.types import CommitBatch
from deadletter.core.dialects.reader import read_letter
from deadletter.core.letters import Letter
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.workers import metrics
from deadletter.workers.redrive.feedback_guard import FeedbackGuard
from deadletter.workers.redrive.rounds import MAX_NAMED_ROUND, Rounds, round_uid
from deadletter.workers.replay.batch_results import MAX_BATCH_BYTES, LetterResult, ReplayBatch, add_results
from deadletter.workers.replay.publication import PublicationBuilder


def round_assignment(assignment: RedriveAssignment, round_: int) -> ReplayAssignment:
    """Return the assignment of a round: a Replay of letters to their origin."""
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


class RoundSender:
    """Sends letters of one dead box back; counts them for rounds, feedback guard and metrics."""

    def __init__(
        self,
        assignment: RedriveAssignment,
        broker: Broker,
        clock: Callable[[], int],
        rounds: Rounds,
        guard: FeedbackGuard,
    ) -> None:
        self._assignment, self._broker, self._clock = assignment, broker, clock
        self._rounds, self._guard = rounds, guard
        self._log = logs.get(__name__)

    async def read(self, span: Span, offsets: set[int]) -> AsyncGenerator[Letter]:
        """Yield the letters of the span at these offsets, in order."""
        if not offsets:
            return
        assignment = self._assignment
        part = Span(span.partition, max(span.start, min(offsets)), max(offsets) + 1)
        async with aclosing(self._broker.read(assignment.boxes.dead, [part])) as chunks:
            async for chunk in chunks:
                for stored in chunk:
                    if stored.place.offset in offsets:
                        yield read_letter(
                            stored.message, stored.place, assignment.dialect, assignment.read_values, assignment.origin
                        )

    async def send(self, span: Span, round_: int, offsets: set[int]) -> int:
        """Send the letters at these offsets and return how many were sent; a letter too large for its origin stays."""
        sent = 0
        try:
            async for letters in self._send_batches(span, round_, offsets):
                sent += letters
        except TooLarge:
            if len(offsets) == 1:
                self._log.warning("letter exceeds the message size limit of its origin", partition=span.partition)
                return 0
            ordered = sorted(offsets)  # letters of batches sent before the error are settled: no writer takes them
            for half in (ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]):
                sent += await self.send(span, round_, set(half))
        return sent

    async def _send_batches(self, span: Span, round_: int, offsets: set[int]) -> AsyncGenerator[int]:
        """Yield the number of letters of each batch; skip letters that others settled or deleted before we opened."""
        boxes, batch = self._assignment.boxes, ReplayBatch()
        builder = PublicationBuilder(round_assignment(self._assignment, round_), self._broker, self._clock)
        async with self._broker.partition_writer(boxes.dead, boxes.ledger, span.partition, round_uid(round_)) as writer:
            progress = writer.progress or PartitionProgress(span, self._clock(), span.start)
            still_open = {offset for offset in offsets if writer.is_open(offset)}
            async with aclosing(self.read(span, still_open)) as letters:
                async for letter in letters:
                    # The pod has little memory, and after an outage many letters are due at once.
                    if batch.taken and batch.taken_bytes + letter.message.size > MAX_BATCH_BYTES:
                        progress = await self._commit(writer, progress, round_, batch)
                        yield batch.taken
                        batch = ReplayBatch()
                    batch.add(await self._build(builder, letter, round_))
            await self._commit(writer, progress, round_, batch)
            yield batch.taken

    @staticmethod
    async def _build(builder: PublicationBuilder, letter: Letter, round_: int) -> LetterResult:
        if builder.needs_origin_lookup(letter):
            await builder.look_up_origin(letter)
        letter.envelope.replays = round_ - 1
        return builder.build(letter, 1)

    async def _commit(
        self, writer: PartitionWriter, progress: PartitionProgress, round_: int, batch: ReplayBatch
    ) -> PartitionProgress:
        """Publish and settle the batch in one commit; return the progress after it."""
        sent, now = [result for result in batch.results if result.publication is not None], self._clock()
        if not sent:
            return progress
        commit = self._build_commit(progress, sent, now)
        self._rounds.invalidate(round_)  # before the commit: one that fails may have published all the same
        await writer.commit(commit)
        self._guard.record_sent(len(sent), now)
        labels = (self._assignment.namespace, self._assignment.queue)
        metrics.REDRIVE_LETTERS.labels(*labels, str(min(round_, MAX_NAMED_ROUND))).inc(len(sent))
        self._log.info("letters sent back", letters=len(sent), round=round_, partition=progress.span.partition)
        return commit.progress

    @staticmethod
    def _build_commit(progress: PartitionProgress, sent: list[LetterResult], now: int) -> CommitBatch:
        next_offset = max(progress.next, sent[-1].offset + 1)
        after = add_results(progress, sent, len(sent), next_offset, "replayed", now)
        publications = [result.publication for result in sent if result.publication is not None]
        return CommitBatch(after, publications, {SettledAs.Replayed: [result.offset for result in sent]})
