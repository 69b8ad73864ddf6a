"""What every partition's walk of one Replay shares."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deadletter.api.assignments import ReplayAssignment
from deadletter.api.replays import Rate
from deadletter.brokers.contract import Broker
from deadletter.core.replay_progress import Tally, Why
from deadletter.core.selection import Selection
from deadletter.workers.rate_limit import Flight, Pace
from deadletter.workers.replay.explicit_ids import Named
from deadletter.workers.replay.publication import Drafter
from deadletter.workers.replay.session import Seat
from deadletter.workers.replay.sinks import Carrier

VERBS = {"Republish": ("replayed", Why.Replayed), "Archive": ("archived", Why.Archived)}
LAST = ("discarded", Why.Discarded)


def selection_of(assignment: ReplayAssignment) -> Selection:
    """The selection of the spec; a preview brings its own and is not judged again."""
    select = assignment.spec.select
    if assignment.preview_uid is not None:
        return Selection()
    return Selection(select.where, (), select.fingerprint, select.since_ms, select.until_ms, select.limit)


@dataclass(slots=True)
class Quota:
    """How much may still be matched (`limit`) and sent (a canary's `step`), over all partitions."""

    seats: Sequence[Seat]
    limit: int | None = None
    step: int | None = None

    @property
    def tallies(self) -> list[Tally]:
        """What is durable, by partition."""
        return [seat.tally for seat in self.seats if seat.tally is not None]

    @property
    def sent(self) -> int:
        """Letters sent so far."""
        return sum(tally.replayed for tally in self.tallies)

    @property
    def to_match(self) -> int | None:
        """Letters that may still match; None: any number."""
        return None if self.limit is None else max(0, self.limit - sum(tally.matched for tally in self.tallies))

    @property
    def to_send(self) -> int | None:
        """Letters that may still be sent before the next wait; None: any number."""
        return None if self.step is None else max(0, self.step - self.sent)


@dataclass(slots=True)
class Errand:
    """One Replay under way."""

    assignment: ReplayAssignment
    broker: Broker
    selection: Selection
    drafter: Drafter
    pace: Pace
    flight: Flight
    rate: Callable[[], Rate | None]
    carrier: Carrier | None
    quota: Quota
    named: Named | None
    clock: Callable[[], int]
    stop: asyncio.Event
    halted: bool = field(default=False)  # another partition failed: end after the step

    @property
    def is_stopping(self) -> bool:
        """Should the walks end after their step?"""
        return self.halted or self.stop.is_set()

    @property
    def archived(self) -> bool:
        """Does it take archived letters?"""
        return self.assignment.spec.select.state == "Archived"

    @property
    def is_preview(self) -> bool:
        """Does it only tell what would happen?"""
        return self.assignment.spec.mode == "DryRun"

    @property
    def publishes(self) -> bool:
        """Does it send anything?"""
        return not self.is_preview and self.assignment.spec.action == "Republish"

    @property
    def verb(self) -> tuple[str, Why]:
        """What a taken letter counts as, and why it is settled."""
        return VERBS.get(self.assignment.spec.action, LAST)
