"""The contract every broker keeps.

What a caller may rely on after a crash stands at each method. Errors are those of `errors.py` and no others.
Where brokers differ it is said here: on Kafka a move is one transaction (exactly once for read_committed consumers);
on Redis it is two idempotent scripts (nothing lost or doubled by OUR crashes; a crash of Redis keeps what its own
persistence keeps).
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.group_offsets import StartPosition
from deadletter.brokers.types import (
    BoxState,
    Claim,
    CommitBatch,
    MonitoredBox,
    Publication,
    ResumedGroup,
    ServerInfo,
    Settlement,
    StoredMessage,
    SubscriptionSpec,
)
from deadletter.core.box_spec import BoxSpec
from deadletter.core.box_stats import BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.replay_progress import PartitionProgress, Span

LETTER_BATCH_INTERVAL_S = 0.5  # seconds; a desk may gather letters of its source for so long and write them together


class Offsets(Protocol):
    """A set of offsets of one box partition."""

    def __contains__(self, offset: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


class BoxMonitor(Protocol):
    """The registers of many boxes on one broker, kept between sweeps."""

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """A reading per dead box, or what went wrong with it alone. Boxes no longer named are forgotten.

        A few requests per broker when nothing changed; never holds the event loop over 10 ms.
        """

    async def close(self) -> None:
        """Let go of connections."""


class Subscription(Protocol):
    """What a courier works at: claims come in, settlements go out.

    Killed at any moment: a claim that was not settled is claimed again (here or by another pod); one that was settled
    never is. A settlement and what it stands for (letter in the dead box, parked letter) become visible together.
    """

    @property
    def lag(self) -> int:
        """Messages of the source not yet claimed, as far as known."""

    @property
    def parked_letters(self) -> int:
        """Letters waiting in the retry partitions this desk works on."""

    @property
    def lost_letters(self) -> int:
        """Parked letters that were gone from the retry box when they were due, since this desk was opened."""

    @property
    def blocked_by(self) -> BrokerError | None:
        """What keeps a part of the source or the retry box shut, even while the rest is worked on; None: nothing."""

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due_limit: int | None = None) -> list[Claim]:
        """Due parked letters first, at most `due` of them, then messages of the source, in turn from its partitions.

        It waits at most 1 s for the first one.
        """

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Remember an inline failure, so that a restart goes on counting (within one commit interval)."""

    def holds(self, claim: Claim) -> bool:
        """Is it still ours? False after a rebalance took it away: drop it, somebody else has it."""

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Returns when it is durable; a letter may wait for others, at most LETTER_BATCH_INTERVAL_S after the last ones.

        BoxRefused, TooLarge, ...: nothing happened, it may be tried again.
        Fenced: the claim is no longer ours.
        """

    async def report_status(self, status: WorkerStatus) -> None:
        """Keep this word where the sweep reads it."""


class PartitionWriter(Protocol):
    """The one settler of one box partition; a second one fences the first."""

    @property
    def progress(self) -> PartitionProgress | None:
        """What an earlier mover of the same Replay had counted; None at its beginning."""

    def is_open(self, offset: int) -> bool:
        """Is the letter there to be taken: not settled, or with `archived` settled as archived and not restored?"""

    async def commit(self, batch: CommitBatch) -> None:
        """Publish, settle, note `produced` and `selected`, and write the tally.

        Together on Kafka; on Redis in an order that is idempotent when repeated. After any error the mover is spent:
        open a new one and go on from its tally.

        TooLarge names no payload; nothing of the step happened.
        """


class PublishedPositions(Protocol):
    """Where a Replay published, as far as the broker gives positions."""

    def __len__(self) -> int: ...
    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """Did it publish there?"""


class Broker(Protocol):
    """One open connection to one broker."""

    async def server_info(self) -> ServerInfo:
        """Who answers. The probe of a BrokerConnection."""

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """The boxes among `names` that exist; a few requests, however many names."""

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Make the box as asked, or bring it there: partitions only grow, our configs are set and no other is reset.

        Idempotent. BoxMissing for an adopted box that is not there, BoxConflict for partitions that would shrink,
        BoxAppeared for a box that exists and must be new.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Delete boxes with all letters; those that do not exist are fine."""

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """First and end offset of each partition now; BoxMissing if there is no box."""

    def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """What is committed in these spans, in order per partition, in bounded batches; consumes nothing.

        An empty batch says that retention ate what was to come next. Undecodable: nobody can read on.
        """

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:
        """Settled offsets per partition, read only; without a ledger none. (Redis: settled letters are gone.)"""

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish without settling: at least once, from another broker or an application.

        On Redis a publication of the same `letter` is not repeated within 7 days.
        """

    def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AbstractAsyncContextManager[PartitionWriter]:
        """Become the settler of one box partition for a Replay or a redrive round.

        BoxRecreated: stop, a human decides.
        """

    def subscribe(self, spec: SubscriptionSpec) -> AbstractAsyncContextManager[Subscription]:
        """Join the group and work on the source and the retry box.

        A new group gets an offset of every partition before anything is read. GroupOffsetsLost: it `has_started`, has
        no offset of any partition, and the source holds messages; nothing is read or committed.
        """

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if the source holds messages and the group has no offset of any of its partitions."""

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Give a lost group its offsets. None: it is not lost, and nothing was changed.

        Killed at any moment, either all offsets are written or none.
        """

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """What the DryRun `uid` selected, per partition and in order; empty when there is none."""

    async def published_positions(self, ledger: str, uid: str) -> PublishedPositions:
        """Where the Replay `uid` published."""

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """What every Replay and redrive round has counted so far, by its uid; without a ledger none."""

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Remove selection, produced and tally of a deleted Replay."""

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """A human decided after BoxRecreated: nothing of this box is settled any more."""

    async def match_ledger_replication(self, box: str, ledger: str) -> str:
        """Start to give an existing ledger as many replicas as its dead box has; never creates it.

        Returns what is missing if the broker refuses that, as a sentence without a period. Only Kafka has replicas.
        """

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:
        """Keep the word of a worker without a desk where the sweep reads it; None takes it back."""

    def monitor(self) -> BoxMonitor:
        """A new, empty set of registers on this connection."""
