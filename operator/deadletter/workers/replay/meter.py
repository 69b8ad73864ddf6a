"""What a replayer shows on /metrics: the difference between two durable tallies."""

from collections.abc import Callable

from deadletter.api.assignments import ReplayAssignment
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers import metrics

Meter = Callable[[PartitionProgress | None, PartitionProgress], None]


def _results(tally: PartitionProgress | None) -> dict[str, int]:
    if tally is None:
        return {}
    return {
        "replayed": tally.replayed,
        "archived": tally.archived,
        "discarded": tally.discarded,
        "skipped": sum(tally.skipped.values()),
        "failedAgain": tally.failed_again,
    }


def meter_of(assignment: ReplayAssignment) -> Meter:
    """Counts what each step of this Replay adds."""
    where = (assignment.namespace, assignment.name, assignment.queue)

    def note(before: PartitionProgress | None, after: PartitionProgress) -> None:
        known = _results(before)
        for result, letters in _results(after).items():
            metrics.REPLAY_LETTERS.labels(*where, result).inc(max(0, letters - known.get(result, 0)))

    return note
