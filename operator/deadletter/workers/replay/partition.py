"""Replay one partition: read letters, select them, build publications, commit batches, up to the end of the window.

Limits over all partitions (`limit`, a canary step) hold because partitions are then replayed one after the other in
order. So the same letters are taken no matter where the Replay was interrupted.
"""

import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import NoReturn

from deadletter.brokers.errors import TooLarge
from deadletter.brokers.types import StoredMessage
from deadletter.core.dialects.reader import read_letter, read_letter_summary
from deadletter.core.letters import SEQUENCE_MASK, Letter, Message, Place
from deadletter.core.replay_progress import PartitionProgress, Skip, Span
from deadletter.workers.exit_status import ReplayFailed
from deadletter.workers.replay.batch_results import (
    MAX_BATCH_BYTES,
    MAX_BATCH_LETTERS,
    MAX_BATCH_SCANNED,
    LetterResult,
    ReplayBatch,
)
from deadletter.workers.replay.context import ReplayContext
from deadletter.workers.replay.explicit_ids import OffsetCursor
from deadletter.workers.replay.session import PartitionSession

COMMIT_INTERVAL_S = 0.5
SCAN_COMMIT_INTERVAL_S = 2.0
MAX_SERVICE_LETTERS = 256
END_OF_OFFSETS = 1 << 160  # above every entry id of a stream


def is_window_read(progress: PartitionProgress) -> bool:
    """True if every letter of the frozen window was read."""
    return progress.next >= progress.span.end


class PartitionReplay:
    """One pass over one partition; it continues where the progress ends."""

    def __init__(self, context: ReplayContext, session: PartitionSession, progress: PartitionProgress) -> None:
        self._context, self._session = context, session
        self._span, self._now = progress.span, progress.now
        self._position = progress.next
        self._batch = ReplayBatch()
        self._is_behind_retention = False
        self._granted = 0  # letters that this batch may take
        self._matches: int | None = None
        self._batch_started = time.monotonic()
        self._cursor = self._start_cursor(progress)
        assignment = context.assignment
        self._read = self._choose_reader(context)
        self._fails_without_origin = context.publishes and assignment.spec.on_missing_origin == "Fail"
        self._matches_all = context.selection.matches_all
        # Letters that are sent or archived stay in memory until the commit; a DryRun keeps none.
        share = MAX_BATCH_BYTES * 4 // max(4, assignment.spec.parallelism)
        self._max_bytes = sys.maxsize if context.is_dry_run else share

    def _start_cursor(self, progress: PartitionProgress) -> OffsetCursor | None:
        offsets = self._context.explicit_offsets
        if offsets is None:
            return None
        # A first pass also gives results to explicit letters below the window.
        start = 0 if progress.next == progress.span.start else progress.next
        return OffsetCursor.starting_at(offsets.get(self._session.partition, []), start)

    @staticmethod
    def _choose_reader(context: ReplayContext) -> Callable[[Message, Place], Letter]:
        """Return the cheapest reader that yields what selecting and sending a letter need."""
        assignment = context.assignment
        needs_times = assignment.target.kind in ("Retry", "Service") or assignment.spec.timestamp == "Original"
        reads_summary = context.selection.needs_only_summary and not (context.publishes and needs_times)
        reader = partial(read_letter_summary, to_send=context.publishes) if reads_summary else read_letter
        return partial(reader, dialect=assignment.dialect, read_values=assignment.read_values, origin=assignment.origin)

    async def run(self) -> None:
        """Replay until the end of the window, the end of the quota or a stop."""
        await self._count_expired(self._position, self._span.end)
        if not await self._start_batch():
            return
        start, end = self._read_bounds()
        if start < end:
            span = Span(self._span.partition, start, end)
            box = self._context.assignment.boxes.dead
            async with aclosing(self._context.broker.read(box, [span], self._context.reads_archive)) as chunks:
                async for chunk in chunks:
                    if not await self._process(chunk):
                        return
        await self._finish_window()

    def _read_bounds(self) -> tuple[int, int]:
        if self._cursor is None:
            return self._position, self._span.end
        first, end = self._cursor.bounds
        return max(first, self._position), min(end, self._span.end)

    async def _process(self, chunk: list[StoredMessage]) -> bool:
        """Add the letters to batches and commit full ones; return False when the pass is over.

        An empty chunk says that retention deleted what was to be read next.
        """
        self._is_behind_retention = self._is_behind_retention or not chunk
        if chunk and self._is_behind_retention:
            await self._count_expired(self._position, chunk[0].place.offset)
            self._is_behind_retention = False
        for stored in chunk:
            letter = self._select(stored)
            if letter is not None:
                await self._add(letter)
            if self._is_batch_full() and not await self._commit_and_continue():
                return False
        interval = COMMIT_INTERVAL_S if self._context.publishes else SCAN_COMMIT_INTERVAL_S
        is_due = bool(self._batch.results) and time.monotonic() - self._batch_started > interval
        if is_due or self._context.is_stopping:
            return await self._commit_and_continue()
        return True

    async def _add(self, letter: Letter) -> None:
        builder = self._context.builder
        if builder.needs_origin_lookup(letter):
            await builder.look_up_origin(letter)
        result = builder.build(letter, self._batch.scanned)
        if self._fails_without_origin and result.skip is Skip.NoOrigin:
            await self._fail_without_origin(result)
        self._batch.add(result)

    def _select(self, stored: StoredMessage) -> Letter | None:
        """Return the letter if it is to be replayed; add the result of an explicit letter that cannot be."""
        place, batch = stored.place, self._batch
        self._position = place.offset + 1
        batch.scanned += 1
        if self._cursor is not None:
            for offset in self._cursor.take_missing(place.offset):
                batch.add(self._expired_result(offset))
            if not self._cursor.match(place.offset):
                return None
        if not self._session.is_takeable(place.offset):
            if self._cursor is not None:
                batch.add(LetterResult(place, batch.scanned, skip=Skip.AlreadySettled))
            return None
        letter = self._read(stored.message, place)
        is_match = self._matches_all or self._context.selection.matches(letter, self._now)
        if is_match is None:
            batch.add(LetterResult(place, batch.scanned, skip=Skip.SelectorError))
        return letter if is_match else None

    def _expired_result(self, offset: int) -> LetterResult:
        place = Place(self._context.assignment.boxes.dead, self._span.partition, offset)
        return LetterResult(place, self._batch.scanned, skip=Skip.Expired)

    async def _fail_without_origin(self, result: LetterResult) -> NoReturn:
        """Commit the letters before this one and fail the Replay, as `onMissingOrigin: Fail` demands."""
        self._batch.scanned -= 1
        await self._flush(result.offset)
        raise ReplayFailed(
            "OriginUnknown",
            f"Letter {result.place.id} does not say where it came from. "
            "Discard it, or set onMissingOrigin to Skip and replay again.",
        )

    def _is_batch_full(self) -> bool:
        batch = self._batch
        return (
            (self._matches is not None and batch.matched >= self._matches)
            or batch.taken >= self._granted
            or batch.taken_bytes >= self._max_bytes
            or batch.scanned >= MAX_BATCH_SCANNED
        )

    async def _commit_and_continue(self) -> bool:
        """Commit the batch and start the next one; return False when the pass is over."""
        await self._flush(self._position)
        return await self._start_batch()

    async def _start_batch(self) -> bool:
        context = self._context
        if context.is_stopping:
            return False
        self._matches = context.quota.matches_left
        if self._matches == 0:
            self._batch = ReplayBatch()
            await self._flush(self._span.end)
            return False
        limit = self._batch_limit()
        self._granted = await context.tokens.acquire(limit) if context.publishes and limit else limit
        self._batch_started = time.monotonic()
        return self._granted > 0

    def _batch_limit(self) -> int:
        context = self._context
        if not context.publishes:
            return MAX_BATCH_SCANNED
        rate = context.current_rate()
        limit = MAX_SERVICE_LETTERS if context.assignment.target.kind == "Service" else MAX_BATCH_LETTERS
        if rate is not None and rate.max_in_flight is not None:
            limit = min(limit, max(1, rate.max_in_flight // context.assignment.spec.parallelism))
        left = context.quota.sends_left
        return limit if left is None else min(limit, left)

    async def _finish_window(self) -> None:
        if self._cursor is not None:
            for offset in self._cursor.take_missing(END_OF_OFFSETS):
                self._batch.add(self._expired_result(offset))
        elif self._position < self._span.end:
            await self._count_expired(self._position, self._span.end)
        await self._flush(self._span.end)

    async def _flush(self, next_offset: int) -> None:
        """Commit the batch and return the tokens that it did not use; `next_offset` is where the next one starts."""
        batch, self._batch = self._batch, ReplayBatch()
        if self._context.publishes:
            self._context.tokens.refund(max(0, self._granted - batch.taken))
            self._granted = 0
        await self._commit(batch, next_offset)

    async def _commit(self, batch: ReplayBatch, next_offset: int) -> None:
        await self._session.open()
        progress = self._session.progress
        if progress is None:
            return
        context = self._context
        try:
            async with context.in_flight_limit.reserve(batch.taken if context.publishes else 0):
                if context.sink is not None and context.publishes:
                    await context.sink.send(batch.results)
                await self._session.commit(context.build_commit(progress, batch, next_offset))
        except TooLarge:
            await self._commit_halves(batch, next_offset)

    async def _commit_halves(self, batch: ReplayBatch, next_offset: int) -> None:
        """Halve a batch that is too large until one letter remains; skip this letter or fail the Replay."""
        halves = batch.split()
        if halves is not None:
            first, second, middle = halves
            await self._commit(first, middle)
            await self._commit(second, next_offset)
            return
        result = next((one for one in batch.results if one.publication is not None), None)
        if result is None:
            raise TooLarge("The ledger rejects the progress of this Replay as too large.")
        if self._context.assignment.spec.on_too_large == "Fail":
            raise ReplayFailed(
                "TooLarge",
                f"Letter {result.place.id} exceeds the message size limit of its target. "
                "Raise the limit, or set onTooLarge to Skip and replay again.",
            )
        result.skip, result.publication, result.target = Skip.TooLarge, None, ""
        await self._commit(batch, next_offset)

    async def _count_expired(self, start: int, end: int) -> None:
        """Count open letters from `start` to `end` that retention deleted before they were read."""
        if self._cursor is not None or end > SEQUENCE_MASK:
            return  # explicit letters get their own results; retention does not delete entries of a stream
        window = await self._context.broker.window(self._context.assignment.boxes.dead, self._context.reads_archive)
        first = next((span.start for span in window if span.partition == self._span.partition), start)
        deleted = range(start, min(first, end))
        self._batch.expired += sum(1 for offset in deleted if self._session.is_takeable(offset))
        self._position = max(self._position, min(first, end))
