"""A batch under way: outcomes of one partition between two commits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.types import Publication, Step
from deadletter.core.replay_progress import Skip, Tally, Why
from deadletter.workers.replay.context import Errand
from deadletter.workers.replay.letter_results import Outcome, fold

LETTERS = 2_000
BYTES = 8 << 20
SCANNED = 10_000


@dataclass(slots=True)
class Batch:
    """Outcomes in order; `size`: bytes of the letters that are taken, `gone`: letters that retention ate before."""

    outcomes: list[Outcome] = field(default_factory=list)
    scanned: int = 0
    taken: int = 0
    matched: int = 0
    size: int = 0
    gone: int = 0

    def add(self, outcome: Outcome) -> None:
        """One more outcome."""
        self.outcomes.append(outcome)
        self.matched += outcome.skip is not Skip.SelectorError
        if outcome.skip is None:
            self.taken += 1
            self.size += outcome.size

    def halves(self) -> tuple["Batch", "Batch", int] | None:
        """Two batches with half the publications each, and where the first one ends; None: there is only one."""
        published = [at for at, outcome in enumerate(self.outcomes) if outcome.publication is not None]
        if len(published) < 2:
            return None
        at = published[len(published) // 2]
        cut = self.outcomes[at]
        before = cut.scanned - 1
        for outcome in self.outcomes[at:]:
            outcome.scanned -= before
        first, second = Batch(scanned=before, gone=self.gone), Batch(scanned=self.scanned - before)
        for number, outcome in enumerate(self.outcomes):
            (first if number < at else second).add(outcome)
        return first, second, cut.offset


def _expire(tally: Tally, gone: int) -> Tally:
    skipped = tally.skipped | {Skip.Expired.value: tally.skipped.get(Skip.Expired.value, 0) + gone}
    return tally.evolve(skipped=skipped, matched=tally.matched + gone)


def _settled(errand: Errand, outcomes: Sequence[Outcome]) -> Mapping[Why, Sequence[int]]:
    offsets = [outcome.offset for outcome in outcomes if outcome.skip is None and not outcome.refused]
    return {errand.verb[1]: offsets} if offsets and not errand.is_preview else {}


def _publications(errand: Errand, outcomes: Sequence[Outcome]) -> list[Publication]:
    if errand.is_preview or errand.carrier is not None:
        return []
    return [outcome.publication for outcome in outcomes if outcome.publication is not None]


def step_of(errand: Errand, tally: Tally, batch: Batch, following: int) -> Step:
    """The one step that does all of a batch."""
    verb = "" if errand.is_preview else errand.verb[0]
    after = fold(tally, batch.outcomes, batch.scanned, following, verb, errand.clock())
    if batch.gone:
        after = _expire(after, batch.gone)
    selected = [one.offset for one in batch.outcomes if one.skip is None] if errand.is_preview else []
    return Step(after, _publications(errand, batch.outcomes), _settled(errand, batch.outcomes), selected)
