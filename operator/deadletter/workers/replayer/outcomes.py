"""What becomes of matched letters, and how a batch of it is added to a tally."""

from collections.abc import Sequence
from dataclasses import dataclass

from deadletter.brokers.values import Publication
from deadletter.core.letters import Place
from deadletter.core.tallies import Skip, Tally

MOST_NAMES = 100
MOST_SAMPLES = 10
REST = "other"


@dataclass(slots=True)
class Outcome:
    """What becomes of one matched letter. `scanned`: letters the batch had seen, this one counted."""

    place: Place
    scanned: int
    size: int = 0
    fingerprint: str = ""
    target: str = ""
    skip: Skip | None = None
    publication: Publication | None = None
    refused: bool = False  # the service said no: sent, failed again, still open

    @property
    def offset(self) -> int:
        """Where in its partition the letter lies."""
        return self.place.offset


def _count(names: dict[str, int], name: str) -> None:
    known = name in names or len(names) - (REST in names) < MOST_NAMES
    name = name if known else REST
    names[name] = names.get(name, 0) + 1


def fold(tally: Tally, outcomes: Sequence[Outcome], scanned: int, following: int, verb: str, now: int) -> Tally:
    """The tally after these outcomes; `verb` is the count a taken letter adds to, or nothing in a DryRun.

    Every outcome is a matched letter but a SelectorError: an expression that fails never selects.
    """
    skipped, groups, targets = dict(tally.skipped), dict(tally.groups), dict(tally.targets)
    samples = list(tally.samples)
    matched = taken = refused = size = 0
    for outcome in outcomes:
        if outcome.skip is not None:
            skipped[outcome.skip.value] = skipped.get(outcome.skip.value, 0) + 1
            if outcome.skip is Skip.SelectorError:
                continue
        else:
            taken += 1
            refused += outcome.refused
            if outcome.target:
                _count(targets, outcome.target)
        matched += 1
        size += outcome.size
        if outcome.fingerprint:
            _count(groups, outcome.fingerprint)
        if len(samples) < MOST_SAMPLES:
            samples.append(outcome.place.id)
    done = {verb: getattr(tally, verb) + taken} if verb else {}
    return tally.evolve(
        next=following,
        scanned=tally.scanned + scanned,
        matched=tally.matched + matched,
        skipped=skipped,
        groups=groups,
        targets=targets,
        samples=tuple(samples),
        bytes=tally.bytes + size,
        failed_again=tally.failed_again + refused,
        updated_at=now,
        **done,
    )
