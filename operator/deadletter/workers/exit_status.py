"""How a replayer or redriver ends: its exit code and its termination message.

0    finished: the progress in the ledger says Finished
1    a broker or service does not answer: the next pod may continue from the ledger
3    failed: the progress says Failed and why; another pod would get the same result
4    fenced: another settler took over; if none of this Replay runs, the Job starts another pod
5    a person must decide: the assignment, the ledger or the box is not as expected
143  stopped on request: the current batch is committed, the next pod continues
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.core.replay_progress import PartitionProgress

FINISHED, TRY_AGAIN, FAILED, FENCED, NEEDS_INTERVENTION, STOPPED = 0, 1, 3, 4, 5, 143
COUNT_FIELDS = ("scanned", "matched", "replayed", "archived", "discarded", "failed_again", "bytes")
MAX_LISTED = 20
MAX_SAMPLES = 10
MAX_EXACT_JSON_INTEGER = 1 << 53  # entry ids of Redis are larger


class ReplayFailed(Exception):
    """The Replay fails with this reason, and a retry would not help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, frozen=True)
class ExitStatus:
    """Exit code, reason and message of a worker; `counts` is the result of a Replay that has no ledger."""

    code: int
    reason: str
    message: str = ""
    counts: dict[str, object] = field(default_factory=dict)


def status_of_broker_error(error: BrokerError) -> ExitStatus:
    """Return how a worker ends after an error of the broker."""
    if isinstance(error, Fenced):
        return ExitStatus(FENCED, "Fenced", "Another worker settles the same dead box. It fenced this one.")
    return ExitStatus(TRY_AGAIN if error.is_transient else NEEDS_INTERVENTION, type(error).__name__, str(error))


def _largest_counts(partitions: Iterable[PartitionProgress], name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for progress in partitions:
        for key, count in getattr(progress, name).items():
            total[key] = total.get(key, 0) + count
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MAX_LISTED])


def total_counts(partitions: list[PartitionProgress]) -> dict[str, object]:
    """Sum the progress of all partitions, in a size that fits a termination message."""
    total: dict[str, object] = {name: sum(getattr(progress, name) for progress in partitions) for name in COUNT_FIELDS}
    spans = [progress.span for progress in partitions if progress.span.end < MAX_EXACT_JSON_INTEGER]
    return total | {
        "skipped": _largest_counts(partitions, "skipped"),
        "groups": _largest_counts(partitions, "groups"),
        "targets": _largest_counts(partitions, "targets"),
        "samples": [sample for progress in partitions for sample in progress.samples][:MAX_SAMPLES],
        "window": [[span.partition, span.start, span.end] for span in spans][:MAX_LISTED],
    }
