"""How a replayer ends: its exit code and its last word.

0    finished: the tallies say Finished
1    a broker or a service does not answer: another pod may go on from the tallies
3    finished badly: the tallies say Failed and why; another pod would find the same
4    fenced: another settler took over; if none of this Replay runs, the Job starts another pod
5    a human decides: the assignment, the ledger or the box is not as it should be
143  asked to stop: the step is done, the tallies are whole, another pod goes on
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.core.replay_progress import PartitionProgress

FINISHED, TRY_AGAIN, FAILED, FENCED, NEEDS_INTERVENTION, STOPPED = 0, 1, 3, 4, 5, 143
COUNT_FIELDS = ("scanned", "matched", "replayed", "archived", "discarded", "failed_again", "bytes")
MAX_LISTED = 20
MAX_EXACT_JSON_INTEGER = 1 << 53  # entry ids of Redis are larger than any number of JSON


class ReplayFailed(Exception):
    """The Replay ends badly, for this reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, frozen=True)
class ExitStatus:
    """Exit code, reason and sentence of a worker's end; `counts` is what a Replay without a ledger answers."""

    code: int
    reason: str
    message: str = ""
    counts: dict[str, object] = field(default_factory=dict)


def status_of_broker_error(error: BrokerError) -> ExitStatus:
    """How an objection of the broker ends a worker."""
    if isinstance(error, Fenced):
        return ExitStatus(FENCED, "Fenced", "Another settler of the same box took over.")
    return ExitStatus(TRY_AGAIN if error.is_transient else NEEDS_INTERVENTION, type(error).__name__, str(error))


def _top(tallies: Iterable[PartitionProgress], name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for tally in tallies:
        for key, count in getattr(tally, name).items():
            total[key] = total.get(key, 0) + count
    most = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return dict(most[:MAX_LISTED])


def total_counts(tallies: list[PartitionProgress]) -> dict[str, object]:
    """All tallies in one, small enough for a termination message."""
    summed: dict[str, object] = {name: sum(getattr(tally, name) for tally in tallies) for name in COUNT_FIELDS}
    return summed | {
        "skipped": _top(tallies, "skipped"),
        "groups": _top(tallies, "groups"),
        "targets": _top(tallies, "targets"),
        "samples": [sample for tally in tallies for sample in tally.samples][:10],
        "window": [[t.span.partition, t.span.start, t.span.end] for t in tallies if t.span.end < MAX_EXACT_JSON_INTEGER][:MAX_LISTED],
    }
