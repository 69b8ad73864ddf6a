"""The walk over one partition: read, choose, draft, commit; from where the tally stands to the end of the window.

Limits over all partitions (`limit`, a canary's step) are kept by walking partitions in their order, one at a time: so
the same letters are taken whatever was interrupted in between.
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
from deadletter.workers.replay.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_LETTERS,
    MAX_BATCH_SCANNED,
    ReplayBatch,
    build_commit,
)
from deadletter.workers.replay.context import ReplayContext
from deadletter.workers.replay.explicit_ids import OffsetCursor
from deadletter.workers.replay.letter_results import LetterResult
from deadletter.workers.replay.session import PartitionSession

BATCH_S = 0.5
SCAN_S = 2.0
SERVICE_LETTERS = 256


def is_window_read(tally: PartitionProgress) -> bool:
    """Is every letter of the frozen window seen?"""
    return tally.next >= tally.span.end


class PartitionReplay:
    """One walk over one partition; a new one goes on from the tally."""

    def __init__(self, errand: ReplayContext, seat: PartitionSession, tally: PartitionProgress) -> None:
        self._errand, self._seat = errand, seat
        self._span, self._now = tally.span, tally.now
        self._position = tally.next
        self._batch = ReplayBatch()
        self._lost = False  # retention was faster than the reader
        self._granted = 0
        self._room = 0
        self._matches: int | None = None
        self._since = time.monotonic()
        named = errand.explicit_offsets
        begun = 0 if tally.next == tally.span.start else tally.next  # at first, those before the window are called too
        self._roll = None if named is None else OffsetCursor.starting_at(named.get(seat.partition, []), begun)
        told = errand.assignment
        self._read = self._reader(errand)
        self._needs_origin = errand.publishes and told.spec.on_missing_origin == "Fail"
        self._takes_all = errand.selection.matches_all
        # What is sent or archived is held until the step is done; a preview lets go of each letter.
        self._most_bytes = sys.maxsize if errand.is_dry_run else MAX_BATCH_BYTES * 4 // max(4, told.spec.parallelism)

    @staticmethod
    def _reader(errand: ReplayContext) -> Callable[[Message, Place], Letter]:
        """How much of a letter is read: what choosing and sending it need."""
        told = errand.assignment
        tells_times = told.target.kind in ("Retry", "Service") or told.spec.timestamp == "Original"
        takes_a_glance = errand.selection.needs_only_summary and not (errand.publishes and tells_times)
        reader = partial(read_letter_summary, to_send=errand.publishes) if takes_a_glance else read_letter
        return partial(reader, dialect=told.dialect, read_values=told.read_values, origin=told.origin)

    async def run(self) -> None:
        """Until the window's end, the quota's end or the stop."""
        await self._note_gone(self._position, self._span.end)
        if not await self._begin():
            return
        start, end = self._bounds()
        if start < end:
            span = Span(self._span.partition, start, end)
            box = self._errand.assignment.boxes.dead
            async with aclosing(self._errand.broker.read(box, [span], self._errand.reads_archive)) as batches:
                async for taken in batches:
                    if not await self._take(taken):
                        return
        await self._finish()

    def _bounds(self) -> tuple[int, int]:
        if self._roll is None:
            return self._position, self._span.end
        first, end = self._roll.bounds
        return max(first, self._position), min(end, self._span.end)

    async def _take(self, batch: list[StoredMessage]) -> bool:
        self._lost = self._lost or not batch
        if batch and self._lost:
            await self._note_gone(self._position, batch[0].place.offset)
            self._lost = False
        drafter = self._errand.builder
        for taken in batch:
            letter = self._choose(taken)
            if letter is not None:
                if drafter.needs_origin_lookup(letter):
                    await drafter.look_up_origin(letter)
                outcome = drafter.build(letter, self._batch.scanned)
                if self._needs_origin and outcome.skip is Skip.NoOrigin:
                    await self._end_at(outcome)
                self._batch.add(outcome)
            if self._is_full() and not await self._turn():
                return False
        longest = BATCH_S if self._errand.publishes else SCAN_S
        is_due = bool(self._batch.results) and time.monotonic() - self._since > longest
        if is_due or self._errand.is_stopping:
            return await self._turn()
        return True

    def _choose(self, taken: StoredMessage) -> Letter | None:
        """The letter, if it is to be taken; what is named and cannot be is noted."""
        place, batch = taken.place, self._batch
        self._position = place.offset + 1
        batch.scanned += 1
        if self._roll is not None:
            for offset in self._roll.take_missing(place.offset):
                batch.add(self._missing(offset))
            if not self._roll.match(place.offset):
                return None
        if not self._seat.is_takeable(place.offset):
            if self._roll is not None:
                batch.add(LetterResult(place, batch.scanned, skip=Skip.AlreadySettled))
            return None
        letter = self._read(taken.message, place)
        chosen = self._takes_all or self._errand.selection.matches(letter, self._now)
        if chosen is None:
            batch.add(LetterResult(place, batch.scanned, skip=Skip.SelectorError))
        return letter if chosen else None

    def _missing(self, offset: int) -> LetterResult:
        place = Place(self._errand.assignment.boxes.dead, self._span.partition, offset)
        return LetterResult(place, self._batch.scanned, skip=Skip.Expired)

    async def _end_at(self, outcome: LetterResult) -> NoReturn:
        """Commit what came before this letter; it does not say where it belongs, and the spec wants that to end all."""
        self._batch.scanned -= 1
        await self._flush(outcome.offset)
        raise ReplayFailed("OriginUnknown", f"Letter {outcome.place.id} does not say where it came from.")

    def _is_full(self) -> bool:
        batch = self._batch
        matched = self._matches is not None and batch.matched >= self._matches
        return (
            matched
            or batch.taken >= self._room
            or batch.taken_bytes >= self._most_bytes
            or batch.scanned >= MAX_BATCH_SCANNED
        )

    async def _turn(self) -> bool:
        """Commit what there is and begin again; False: the walk ends here."""
        await self._flush(self._position)
        return await self._begin()

    async def _begin(self) -> bool:
        errand = self._errand
        if errand.is_stopping:
            return False
        self._matches = errand.quota.matches_left
        if self._matches == 0:
            await self._end(drop=True)
            return False
        wanted = self._wanted()
        self._granted = await errand.tokens.take(wanted) if errand.publishes and wanted else wanted
        self._room = self._granted
        self._since = time.monotonic()
        return self._room > 0

    def _wanted(self) -> int:
        errand = self._errand
        if not errand.publishes:
            return MAX_BATCH_SCANNED
        rate = errand.current_rate()
        most = SERVICE_LETTERS if errand.assignment.target.kind == "Service" else MAX_BATCH_LETTERS
        if rate is not None and rate.max_in_flight is not None:
            most = min(most, max(1, rate.max_in_flight // errand.assignment.spec.parallelism))
        left = errand.quota.sends_left
        return most if left is None else min(most, left)

    async def _finish(self) -> None:
        if self._roll is not None:
            for offset in self._roll.take_missing(1 << 160):
                self._batch.add(self._missing(offset))
        elif self._position < self._span.end:
            await self._note_gone(self._position, self._span.end)
        await self._end(drop=False)

    async def _end(self, *, drop: bool) -> None:
        if drop:
            self._batch = ReplayBatch()
        await self._flush(self._span.end)

    async def _flush(self, following: int) -> None:
        batch, self._batch = self._batch, ReplayBatch()
        if self._errand.publishes:
            self._errand.tokens.give_back(max(0, self._granted - batch.taken))
            self._granted = 0
        await self._commit(batch, following)

    async def _commit(self, batch: ReplayBatch, following: int) -> None:
        await self._seat.open()
        tally = self._seat.progress
        if tally is None:
            return
        errand = self._errand
        try:
            async with errand.in_flight_limit.of(batch.taken if errand.publishes else 0):
                if errand.carrier is not None and errand.publishes:
                    await errand.carrier.carry(batch.results)
                await self._seat.commit(build_commit(errand, tally, batch, following))
        except TooLarge:
            await self._commit_in_parts(batch, following)

    async def _commit_in_parts(self, batch: ReplayBatch, following: int) -> None:
        parts = batch.split()
        if parts is not None:
            first, second, cut = parts
            await self._commit(first, cut)
            await self._commit(second, following)
            return
        outcome = next((one for one in batch.results if one.publication is not None), None)
        if outcome is None:
            raise TooLarge("The ledger does not take a tally.")
        if self._errand.assignment.spec.on_too_large == "Fail":
            raise ReplayFailed("TooLarge", f"Letter {outcome.place.id} exceeds what the target takes.")
        outcome.skip, outcome.publication, outcome.target = Skip.TooLarge, None, ""
        await self._commit(batch, following)

    async def _note_gone(self, start: int, end: int) -> None:
        """Count open letters of `start` to `end` that retention ate before they were read."""
        if self._roll is not None or end > SEQUENCE_MASK:
            return  # named letters are called one by one; entries of a stream do not expire
        window = await self._errand.broker.window(self._errand.assignment.boxes.dead, self._errand.reads_archive)
        first = next((span.start for span in window if span.partition == self._span.partition), start)
        self._batch.expired += sum(1 for offset in range(start, min(first, end)) if self._seat.is_takeable(offset))
        self._position = max(self._position, min(first, end))
