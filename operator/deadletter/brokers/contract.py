"""The contract that every broker implements: Kafka, Redis and the broker in memory.

Each method states what a caller may rely on after a crash. Methods raise the errors of `errors.py` and no others.
The brokers differ in the atomicity of a commit. On Kafka it is one transaction (exactly once for read_committed
consumers). On Redis it is two idempotent scripts: a crash of a worker neither loses nor duplicates a letter; what
survives a crash of Redis depends on its persistence settings.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.lost_offsets import StartPosition
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
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.replay_progress import PartitionProgress, Span

LETTER_BATCH_INTERVAL_S = 0.5  # how long a subscription may collect letters to write them together


class Offsets(Protocol):
    """A set of offsets of one box partition."""

    def __contains__(self, offset: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


class BoxMonitor(Protocol):
    """Statistics of many dead boxes on one broker, kept between sweeps."""

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """Return for each dead box its statistics or the error of that box. Boxes that are not passed are forgotten.

        It takes a few requests per broker if nothing changed, and never blocks the event loop for more than 10 ms.
        """

    async def close(self) -> None:
        """Close the connections of this monitor."""


class Subscription(Protocol):
    """A member of a consumer group that claims messages of the source and parked letters, and settles them.

    After a crash, a claim that was not settled is claimed again, here or by another pod; a settled claim never is. A
    settlement and its letter (in the dead box or the retry box) become visible together.
    """

    @property
    def lag(self) -> int | None:
        """Number of messages of the source that are not claimed yet, as far as known; None if it is unknown."""

    @property
    def parked_letters(self) -> int:
        """Number of letters in the retry partitions that this subscription owns."""

    @property
    def lost_letters(self) -> int:
        """Number of parked letters that were missing from the retry box when due, since this subscription opened."""

    @property
    def deleted_messages(self) -> int:
        """Number of source messages that retention deleted before they were read, since this subscription opened.

        Kafka only: Redis does not tell what was trimmed from a stream.
        """

    @property
    def blocked_by(self) -> BrokerError | None:
        """The error that blocks a part of the source or the retry box while the rest is processed, if any."""

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due_limit: int | None = None) -> list[Claim]:
        """Claim due parked letters, at most `due_limit`, then messages of the source from its partitions in turn.

        It waits at most 1 s for the first claim.
        """

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Record a failed inline attempt. It is persisted within one commit interval and survives a restart."""

    def holds(self, claim: Claim) -> bool:
        """True if the claim is still ours. After a rebalance it may be another member's: drop it."""

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim and return when that is durable.

        A letter may wait up to LETTER_BATCH_INTERVAL_S for others. Fenced: the claim is no longer ours. After any
        other error (BoxRefused, TooLarge and so on) nothing was written, and the call may be repeated.
        """

    async def report_status(self, status: WorkerStatus) -> None:
        """Store the status of this worker where the sweep reads it."""


class PartitionWriter(Protocol):
    """The only writer of one box partition; a newer writer fences it."""

    @property
    def progress(self) -> PartitionProgress | None:
        """Progress that an earlier writer of the same Replay has committed; None at the beginning."""

    def is_open(self, offset: int) -> bool:
        """True if the letter is not settled; with `archived`, if it is settled as archived and not restored."""

    async def commit(self, batch: CommitBatch) -> None:
        """Publish, settle, record published positions and the selection, and write the progress.

        On Kafka all of it is one transaction; on Redis the order makes a repetition idempotent. After any error the
        writer cannot be used again: open a new one and continue from its progress.

        TooLarge: nothing of the batch was written. Its text never quotes a payload.
        """


class PublishedPositions(Protocol):
    """Positions at which a Replay has published, as far as the broker reports positions."""

    def __len__(self) -> int: ...
    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """True if the Replay has published at this position."""


class Broker(Protocol):
    """One open connection to one broker."""

    async def server_info(self) -> ServerInfo:
        """Return what the server reports about itself; used as the probe of a BrokerConnection."""

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Return the boxes among `names` that exist. It takes a few requests for any number of names."""

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Create the box, or add partitions and set our configs; other configs are not reset. Idempotent.

        BoxMissing: a box to adopt does not exist. BoxConflict: partitions would have to be removed. BoxAppeared: the
        box exists and must be new.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Delete boxes with all their letters; boxes that do not exist are ignored."""

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """Return the first and the end offset of each partition; BoxMissing if the box does not exist."""

    def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Read the committed messages of these spans in bounded batches, in order per partition, without consuming.

        An empty batch means that retention deleted the messages that would come next. Undecodable: the partition cannot
        be read further.
        """

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:
        """Return the settled offsets per partition; empty without a ledger, and on Redis, which deletes the letters."""

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish without settling, at least once: for letters of another broker or an application.

        On Redis a publication of the same `letter` is not repeated within 7 days.
        """

    def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AbstractAsyncContextManager[PartitionWriter]:
        """Become the writer of one box partition for the Replay or redrive round `uid`.

        BoxRecreated: the ledger belongs to an earlier box of this name; a user must decide what to do.
        """

    def subscribe(self, spec: SubscriptionSpec) -> AbstractAsyncContextManager[Subscription]:
        """Join the consumer group of the source and take part in processing the retry box.

        A new group commits an offset for every partition before it reads. GroupOffsetsLost: the group `has_started`,
        has no offset of any partition, and the source holds messages; nothing is read or committed.
        """

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if the source holds messages and the group has no offset of any of its partitions."""

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Give a lost group its offsets. Returns None, and changes nothing, if the group is not lost.

        After a crash either all offsets are written or none.
        """

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """Return what the DryRun `uid` selected, per partition and in ascending order; empty if there is nothing."""

    async def published_positions(self, ledger: str, uid: str) -> PublishedPositions:
        """Return where the Replay `uid` has published."""

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """Return the progress of every Replay and redrive round by its uid; empty without a ledger."""

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Delete selection, published positions and progress of a deleted Replay."""

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Delete every settlement of this box, as a user has requested after BoxRecreated."""

    async def match_ledger_replication(self, box: str, ledger: str) -> str:
        """Start to raise the replicas of an existing ledger to those of its dead box; it is never created here.

        Returns what is missing, as a sentence without a period, if the broker refuses. Only Kafka has replicas.
        """

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:
        """Store the status of a worker without a subscription where the sweep reads it; None deletes it."""

    def monitor(self) -> BoxMonitor:
        """Return a new monitor on this connection."""
