"""A batch under way: outcomes of one partition between two commits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.types import CommitBatch, Publication
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Skip
from deadletter.workers.replay.context import ReplayContext
from deadletter.workers.replay.letter_results import LetterResult, add_results

MAX_BATCH_LETTERS = 2_000
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_SCANNED = 10_000


@dataclass(slots=True)
class ReplayBatch:
    """Outcomes in order; `size`: bytes of the letters that are taken, `gone`: letters that retention ate before."""

    results: list[LetterResult] = field(default_factory=list)
    scanned: int = 0
    taken: int = 0
    matched: int = 0
    taken_bytes: int = 0
    expired: int = 0

    def add(self, outcome: LetterResult) -> None:
        """One more outcome."""
        self.results.append(outcome)
        self.matched += outcome.skip is not Skip.SelectorError
        if outcome.skip is None:
            self.taken += 1
            self.taken_bytes += outcome.size

    def split(self) -> tuple["ReplayBatch", "ReplayBatch", int] | None:
        """Two batches with half the publications each, and where the first one ends; None: there is only one."""
        published = [at for at, outcome in enumerate(self.results) if outcome.publication is not None]
        if len(published) < 2:
            return None
        at = published[len(published) // 2]
        cut = self.results[at]
        before = cut.scanned - 1
        for outcome in self.results[at:]:
            outcome.scanned -= before
        first, second = ReplayBatch(scanned=before, expired=self.expired), ReplayBatch(scanned=self.scanned - before)
        for number, outcome in enumerate(self.results):
            (first if number < at else second).add(outcome)
        return first, second, cut.offset


def _expire(tally: PartitionProgress, gone: int) -> PartitionProgress:
    skipped = tally.skipped | {Skip.Expired.value: tally.skipped.get(Skip.Expired.value, 0) + gone}
    return tally.evolve(skipped=skipped, matched=tally.matched + gone)


def _settled(errand: ReplayContext, outcomes: Sequence[LetterResult]) -> Mapping[SettledAs, Sequence[int]]:
    offsets = [outcome.offset for outcome in outcomes if outcome.skip is None and not outcome.is_refused]
    return {errand.verb[1]: offsets} if offsets and not errand.is_dry_run else {}


def _publications(errand: ReplayContext, outcomes: Sequence[LetterResult]) -> list[Publication]:
    if errand.is_dry_run or errand.carrier is not None:
        return []
    return [outcome.publication for outcome in outcomes if outcome.publication is not None]


def build_commit(errand: ReplayContext, tally: PartitionProgress, batch: ReplayBatch, following: int) -> CommitBatch:
    """The one step that does all of a batch."""
    verb = "" if errand.is_dry_run else errand.verb[0]
    after = add_results(tally, batch.results, batch.scanned, following, verb, errand.clock())
    if batch.expired:
        after = _expire(after, batch.expired)
    selected = [one.offset for one in batch.results if one.skip is None] if errand.is_dry_run else []
    return CommitBatch(after, _publications(errand, batch.results), _settled(errand, batch.results), selected)
