"""Results of matched letters, the batch they are gathered in between two commits, and the progress they add up to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from deadletter.brokers.types import Publication
from deadletter.core.letters import Origin, Place
from deadletter.core.replay_progress import PartitionProgress, Skip

MAX_BATCH_LETTERS = 2_000
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_SCANNED = 10_000
MAX_COUNTED_NAMES = 100
MAX_SAMPLES = 10
OTHER_NAMES = "other"


@dataclass(slots=True)
class LetterResult:
    """The result for one matched letter; `scanned` is how many letters its batch had read, including this one."""

    place: Place
    scanned: int
    size: int = 0
    fingerprint: str = ""
    target: str = ""
    skip: Skip | None = None
    publication: Publication | None = None
    origin: Origin | None = None  # a service gets it in headers
    is_refused: bool = False  # the service rejected it: sent and failed again, but still open

    @property
    def offset(self) -> int:
        """Offset of the letter in its partition."""
        return self.place.offset


@dataclass(slots=True)
class ReplayBatch:
    """Results in read order; `taken` letters are not skipped, `expired` ones were deleted by retention before."""

    results: list[LetterResult] = field(default_factory=list)
    scanned: int = 0
    taken: int = 0
    matched: int = 0
    taken_bytes: int = 0
    expired: int = 0

    def add(self, result: LetterResult) -> None:
        """Add a result and count it."""
        self.results.append(result)
        self.matched += result.skip is not Skip.SelectorError
        if result.skip is None:
            self.taken += 1
            self.taken_bytes += result.size

    def split(self) -> tuple["ReplayBatch", "ReplayBatch", int] | None:
        """Return two batches with half of the publications each, and the offset between them; None for fewer than 2."""
        published = [index for index, result in enumerate(self.results) if result.publication is not None]
        if len(published) < 2:
            return None
        middle = published[len(published) // 2]
        first_of_second = self.results[middle]
        scanned_before = first_of_second.scanned - 1
        for result in self.results[middle:]:
            result.scanned -= scanned_before
        first = ReplayBatch(scanned=scanned_before, expired=self.expired)
        second = ReplayBatch(scanned=self.scanned - scanned_before)
        for index, result in enumerate(self.results):
            (first if index < middle else second).add(result)
        return first, second, first_of_second.offset


def _add_counts(counts: Mapping[str, int], more: Counter[str]) -> dict[str, int]:
    after = dict(counts)
    for name, count in more.items():
        is_listed = name in after or len(after) - (OTHER_NAMES in after) < MAX_COUNTED_NAMES
        key = name if is_listed else OTHER_NAMES
        after[key] = after.get(key, 0) + count
    return after


def add_results(
    progress: PartitionProgress,
    results: Sequence[LetterResult],
    scanned: int,
    next_offset: int,
    counter: str,
    now: int,
) -> PartitionProgress:
    """Return the progress after these results; `counter` is the field that counts taken letters, empty in a DryRun.

    Every result is a matched letter except a SelectorError: an expression that fails never selects.
    """
    taken = [result for result in results if result.skip is None]
    matched = [result for result in results if result.skip is not Skip.SelectorError]
    groups = Counter([result.fingerprint for result in matched if result.fingerprint])
    targets = Counter([result.target for result in taken if result.target])
    skipped = Counter([result.skip.value for result in results if result.skip is not None])
    ids = (result.place.id for result in matched if result.skip is not Skip.Expired)
    samples = (*progress.samples, *islice(ids, MAX_SAMPLES))
    counted = {counter: getattr(progress, counter) + len(taken)} if counter else {}
    return progress.evolve(
        next=next_offset,
        scanned=progress.scanned + scanned,
        matched=progress.matched + len(matched),
        skipped=dict(Counter(progress.skipped) + skipped),
        groups=_add_counts(progress.groups, groups),
        targets=_add_counts(progress.targets, targets),
        samples=samples[:MAX_SAMPLES],
        bytes=progress.bytes + sum([result.size for result in matched]),
        failed_again=progress.failed_again + sum(result.is_refused for result in taken),
        updated_at=now,
        **counted,
    )


def add_expired(progress: PartitionProgress, expired: int) -> PartitionProgress:
    """Return the progress after retention deleted this many open letters before they were read."""
    skipped = progress.skipped | {Skip.Expired.value: progress.skipped.get(Skip.Expired.value, 0) + expired}
    return progress.evolve(skipped=skipped, matched=progress.matched + expired)
