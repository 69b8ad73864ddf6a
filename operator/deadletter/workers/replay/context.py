"""What all partitions of one Replay share: its assignment, broker, selection, limits, and what a batch commits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deadletter.api.replay_spec import Rate
from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import CommitBatch, Publication
from deadletter.core.replay_progress import PartitionProgress, SettledAs
from deadletter.core.selection import Selection
from deadletter.workers.rate_limit import InFlightLimit, TokenBucket
from deadletter.workers.replay.batch_results import LetterResult, ReplayBatch, add_expired, add_results
from deadletter.workers.replay.explicit_ids import ExplicitOffsets
from deadletter.workers.replay.publication import PublicationBuilder
from deadletter.workers.replay.session import PartitionSession
from deadletter.workers.replay.sinks import Sink

# Action of the spec: the field of the progress that counts taken letters, and how they are settled.
COUNTER_AND_SETTLEMENT = {
    "Republish": ("replayed", SettledAs.Replayed),
    "Archive": ("archived", SettledAs.Archived),
    "Discard": ("discarded", SettledAs.Discarded),
}


def build_selection(assignment: ReplayAssignment) -> Selection:
    """Return the selection of the spec; after a preview select all, because the preview's letters are fixed."""
    select = assignment.spec.select
    if assignment.preview_uid is not None:
        return Selection()
    return Selection(select.where, (), select.fingerprint, select.since_ms, select.until_ms, select.limit)


@dataclass(slots=True)
class MatchQuota:
    """How many letters may still match (`limit`) and be sent (`canary_step`), counted over all partitions."""

    sessions: Sequence[PartitionSession]
    limit: int | None = None
    canary_step: int | None = None

    @property
    def progress(self) -> list[PartitionProgress]:
        """Durable progress of each partition that has begun."""
        return [session.progress for session in self.sessions if session.progress is not None]

    @property
    def sent(self) -> int:
        """Letters sent so far."""
        return sum(one.replayed for one in self.progress)

    @property
    def matches_left(self) -> int | None:
        """Letters that may still match; None without a limit."""
        return None if self.limit is None else max(0, self.limit - sum(one.matched for one in self.progress))

    @property
    def sends_left(self) -> int | None:
        """Letters that may still be sent in this canary step; None outside a canary."""
        return None if self.canary_step is None else max(0, self.canary_step - self.sent)


@dataclass(slots=True)
class ReplayContext:
    """One running Replay; `is_halted` tells all partitions to stop because another one failed."""

    assignment: ReplayAssignment
    broker: Broker
    selection: Selection
    builder: PublicationBuilder
    tokens: TokenBucket
    in_flight_limit: InFlightLimit
    current_rate: Callable[[], Rate | None]
    sink: Sink | None
    quota: MatchQuota
    explicit_offsets: ExplicitOffsets | None
    clock: Callable[[], int]
    stop: asyncio.Event
    is_halted: bool = field(default=False)

    @property
    def is_stopping(self) -> bool:
        """True if partitions should end after the batch that they work on."""
        return self.is_halted or self.stop.is_set()

    @property
    def reads_archive(self) -> bool:
        """True if the Replay takes archived letters."""
        return self.assignment.spec.select.state == "Archived"

    @property
    def is_dry_run(self) -> bool:
        """True if the Replay only counts and selects letters."""
        return self.assignment.spec.mode == "DryRun"

    @property
    def publishes(self) -> bool:
        """True if the Replay sends letters."""
        return not self.is_dry_run and self.assignment.spec.action == "Republish"

    def build_commit(self, progress: PartitionProgress, batch: ReplayBatch, next_offset: int) -> CommitBatch:
        """Return the one commit that publishes, settles and counts everything in the batch."""
        counter, settled_as = COUNTER_AND_SETTLEMENT[self.assignment.spec.action]
        after = add_results(
            progress, batch.results, batch.scanned, next_offset, "" if self.is_dry_run else counter, self.clock()
        )
        if batch.expired:
            after = add_expired(after, batch.expired)
        selected = [result.offset for result in batch.results if result.skip is None] if self.is_dry_run else []
        return CommitBatch(after, self._publications(batch.results), self._settled(batch.results, settled_as), selected)

    def _publications(self, results: Sequence[LetterResult]) -> list[Publication]:
        """Return what the writer publishes; a sink has sent its letters before the commit."""
        if self.is_dry_run or self.sink is not None:
            return []
        return [result.publication for result in results if result.publication is not None]

    def _settled(self, results: Sequence[LetterResult], settled_as: SettledAs) -> Mapping[SettledAs, Sequence[int]]:
        offsets = [result.offset for result in results if result.skip is None and not result.is_refused]
        return {settled_as: offsets} if offsets and not self.is_dry_run else {}
