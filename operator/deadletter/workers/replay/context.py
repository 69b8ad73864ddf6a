"""What every partition's walk of one Replay shares."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deadletter.api.assignments import ReplayAssignment
from deadletter.api.replays import Rate
from deadletter.brokers.contract import Broker
from deadletter.core.replay_progress import PartitionProgress, SettledAs
from deadletter.core.selection import Selection
from deadletter.workers.rate_limit import InFlightLimit, TokenBucket
from deadletter.workers.replay.explicit_ids import ExplicitOffsets
from deadletter.workers.replay.publication import PublicationBuilder
from deadletter.workers.replay.session import PartitionSession
from deadletter.workers.replay.sinks import Carrier

VERBS = {"Republish": ("replayed", SettledAs.Replayed), "Archive": ("archived", SettledAs.Archived)}
LAST = ("discarded", SettledAs.Discarded)


def build_selection(assignment: ReplayAssignment) -> Selection:
    """The selection of the spec; a preview brings its own and is not judged again."""
    select = assignment.spec.select
    if assignment.preview_uid is not None:
        return Selection()
    return Selection(select.where, (), select.fingerprint, select.since_ms, select.until_ms, select.limit)


@dataclass(slots=True)
class MatchQuota:
    """How much may still be matched (`limit`) and sent (a canary's `step`), over all partitions."""

    sessions: Sequence[PartitionSession]
    limit: int | None = None
    canary_step: int | None = None

    @property
    def progress(self) -> list[PartitionProgress]:
        """What is durable, by partition."""
        return [seat.progress for seat in self.sessions if seat.progress is not None]

    @property
    def sent(self) -> int:
        """Letters sent so far."""
        return sum(tally.replayed for tally in self.progress)

    @property
    def matches_left(self) -> int | None:
        """Letters that may still match; None: any number."""
        return None if self.limit is None else max(0, self.limit - sum(tally.matched for tally in self.progress))

    @property
    def sends_left(self) -> int | None:
        """Letters that may still be sent before the next wait; None: any number."""
        return None if self.canary_step is None else max(0, self.canary_step - self.sent)


@dataclass(slots=True)
class ReplayContext:
    """One Replay under way."""

    assignment: ReplayAssignment
    broker: Broker
    selection: Selection
    builder: PublicationBuilder
    tokens: TokenBucket
    in_flight_limit: InFlightLimit
    current_rate: Callable[[], Rate | None]
    carrier: Carrier | None
    quota: MatchQuota
    explicit_offsets: ExplicitOffsets | None
    clock: Callable[[], int]
    stop: asyncio.Event
    is_halted: bool = field(default=False)  # another partition failed: end after the step

    @property
    def is_stopping(self) -> bool:
        """Should the walks end after their step?"""
        return self.is_halted or self.stop.is_set()

    @property
    def reads_archive(self) -> bool:
        """Does it take archived letters?"""
        return self.assignment.spec.select.state == "Archived"

    @property
    def is_dry_run(self) -> bool:
        """Does it only tell what would happen?"""
        return self.assignment.spec.mode == "DryRun"

    @property
    def publishes(self) -> bool:
        """Does it send anything?"""
        return not self.is_dry_run and self.assignment.spec.action == "Republish"

    @property
    def verb(self) -> tuple[str, SettledAs]:
        """What a taken letter counts as, and why it is settled."""
        return VERBS.get(self.assignment.spec.action, LAST)
