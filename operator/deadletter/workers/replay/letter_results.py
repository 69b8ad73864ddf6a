"""What becomes of matched letters, and how a batch of it is added to a tally."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from deadletter.brokers.types import Publication
from deadletter.core.letters import Origin, Place
from deadletter.core.replay_progress import PartitionProgress, Skip

MOST_NAMES = 100
MOST_SAMPLES = 10
REST = "other"


@dataclass(slots=True)
class LetterResult:
    """What becomes of one matched letter. `scanned`: letters the batch had seen, this one counted."""

    place: Place
    scanned: int
    size: int = 0
    fingerprint: str = ""
    target: str = ""
    skip: Skip | None = None
    publication: Publication | None = None
    origin: Origin | None = None  # told to a service, which is no box
    is_refused: bool = False  # the service said no: sent, failed again, still open

    @property
    def offset(self) -> int:
        """Where in its partition the letter lies."""
        return self.place.offset


def _counted(names: Mapping[str, int], more: Counter[str]) -> dict[str, int]:
    after = dict(names)
    for name, count in more.items():
        is_known = name in after or len(after) - (REST in after) < MOST_NAMES
        under = name if is_known else REST
        after[under] = after.get(under, 0) + count
    return after


def add_results(
    tally: PartitionProgress, outcomes: Sequence[LetterResult], scanned: int, following: int, verb: str, now: int
) -> PartitionProgress:
    """The tally after these outcomes; `verb` is the count a taken letter adds to, or nothing in a DryRun.

    Every outcome is a matched letter but a SelectorError: an expression that fails never selects.
    """
    taken = [outcome for outcome in outcomes if outcome.skip is None]
    matched = [outcome for outcome in outcomes if outcome.skip is not Skip.SelectorError]
    groups = Counter([outcome.fingerprint for outcome in matched if outcome.fingerprint])
    targets = Counter([outcome.target for outcome in taken if outcome.target])
    skipped = Counter([outcome.skip.value for outcome in outcomes if outcome.skip is not None])
    seen = (outcome.place.id for outcome in matched if outcome.skip is not Skip.Expired)
    samples = (*tally.samples, *islice(seen, MOST_SAMPLES))
    done = {verb: getattr(tally, verb) + len(taken)} if verb else {}
    return tally.evolve(
        next=following,
        scanned=tally.scanned + scanned,
        matched=tally.matched + len(matched),
        skipped=dict(Counter(tally.skipped) + skipped),
        groups=_counted(tally.groups, groups),
        targets=_counted(tally.targets, targets),
        samples=samples[:MOST_SAMPLES],
        bytes=tally.bytes + sum([outcome.size for outcome in matched]),
        failed_again=tally.failed_again + sum(outcome.is_refused for outcome in taken),
        updated_at=now,
        **done,
    )
