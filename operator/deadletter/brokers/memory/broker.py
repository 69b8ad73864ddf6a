"""Implement the broker contract on a server in memory."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from deadletter.brokers.contract import BoxMonitor, Offsets
from deadletter.brokers.errors import BoxAppeared, BoxConflict, BoxMissing
from deadletter.brokers.lost_offsets import StartPosition
from deadletter.brokers.memory.group_offsets import is_lost, start_offsets
from deadletter.brokers.memory.partition_writer import MemoryPartitionWriter
from deadletter.brokers.memory.server import MemoryBox, MemoryServer
from deadletter.brokers.memory.subscription import MemorySubscription
from deadletter.brokers.types import BoxState, Publication, ResumedGroup, ServerInfo, StoredMessage, SubscriptionSpec
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress, Span

BATCH_SIZE = 100


class MemoryPublishedPositions:
    """Positions at which a Replay has published."""

    def __init__(self, positions: frozenset[tuple[str, int, int]]) -> None:
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """True if the Replay has published at this position."""
        return (topic, partition, offset) in self._positions


class MemoryBroker:
    """Implements `contract.Broker`. Open one for each process that shares the server."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        self._server = server or MemoryServer()

    async def server_info(self) -> ServerInfo:
        """Return name and version."""
        self._server.raise_if_down()
        return ServerInfo("Memory", "1", 1, transactions=True, id=self._server.name)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Return the boxes that exist."""
        self._server.raise_if_down()
        return {name: self._server.boxes[name].state for name in names if name in self._server.boxes}

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Create the box or add partitions."""
        self._server.raise_if_down()
        box = self._server.boxes.get(spec.name)
        if spec.adopt and box is None:
            raise BoxMissing(f"box {spec.name} does not exist and is to be adopted; create it first")
        if box is None:
            return self._server.create_box(spec).state
        if spec.must_be_new:
            raise BoxAppeared(f"{spec.name}: another client created it at the same moment")
        return box.state if spec.adopt else _add_partitions(box, spec).state

    async def delete(self, names: Sequence[str]) -> None:
        """Delete boxes and ledgers; those that do not exist are ignored."""
        self._server.raise_if_down()
        for name in names:
            self._server.boxes.pop(name, None)
            self._server.ledgers.pop(name, None)

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:  # noqa: ARG002 (archived letters stay in the box)
        """Return the first and the end offset of each partition."""
        found = self._server.get_box(box)
        return tuple(Span(number, found.first_offset(number), end) for number, end in enumerate(found.end_offsets))

    async def read(
        self,
        box: str,
        spans: Sequence[Span],
        archived: bool = False,  # noqa: ARG002 (archived letters stay in the box)
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Read the letters of these spans in batches."""
        for span in spans:
            letters = self._server.get_box(box).partitions[span.partition]
            offsets = [offset for offset in letters if span.start <= offset < span.end]
            for first in range(0, len(offsets), BATCH_SIZE):
                self._server.raise_if_down()
                batch = offsets[first : first + BATCH_SIZE]
                if not letters.keys() >= set(batch):
                    yield []
                yield [StoredMessage(Place(box, span.partition, at), letters[at]) for at in batch if at in letters]

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:
        """Return the settled offsets per partition."""
        self._server.raise_if_down()
        if ledger not in self._server.ledgers:
            return {}
        found = self._server.ledgers[ledger].settled.items()
        return {number: frozenset().union(*by_why.values()) for (name, number), by_why in found if name == box}

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish without settling anything."""
        for publication in publications:
            self._server.publish(publication)

    @asynccontextmanager
    async def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AsyncIterator[MemoryPartitionWriter]:
        """Become the writer of the partition and fence the one before."""
        yield MemoryPartitionWriter(self._server, box, ledger, partition, uid, archived)

    @asynccontextmanager
    async def subscribe(self, spec: SubscriptionSpec) -> AsyncIterator[MemorySubscription]:
        """Join the consumer group; at the end, release the claims that are still held."""
        subscription = MemorySubscription(self._server, spec)
        try:
            yield subscription
        finally:
            subscription.close()

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if the source holds messages and the group has no position."""
        return is_lost(self._server, source, group)

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Give a lost group a position in every partition."""
        if not is_lost(self._server, source, group):
            return None
        box = self._server.get_box(source)
        firsts, starts = [box.first_offset(number) for number in range(len(box.end_offsets))], start_offsets(box, start)
        self._server.groups[source, group].next_offsets = dict(enumerate(starts))
        return ResumedGroup(
            skipped_messages=sum(starts) - sum(firsts), remaining_messages=sum(box.end_offsets) - sum(starts)
        )

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """Return what a DryRun selected."""
        self._server.raise_if_down()
        selected = self._server.ledgers[ledger].selected.get(uid, {})
        return {partition: tuple(sorted(offsets)) for partition, offsets in selected.items()}

    async def published_positions(self, ledger: str, uid: str) -> MemoryPublishedPositions:
        """Return where a Replay has published."""
        self._server.raise_if_down()
        return MemoryPublishedPositions(frozenset(self._server.ledgers[ledger].published.get(uid, ())))

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """Return the progress of every Replay."""
        self._server.raise_if_down()
        return {uid: list(parts.values()) for uid, parts in self._server.ledgers[ledger].progress.items()}

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Delete the records of a deleted Replay."""
        self._server.raise_if_down()
        found = self._server.ledgers[ledger]
        for records in (found.selected, found.published, found.progress):
            records.pop(uid, None)

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Forget every settlement of this box."""
        found = self._server.ledgers[ledger]
        for key in [key for key in found.settled if key[0] == box]:
            del found.settled[key]
        for key in [key for key in found.generations if key[0] == box]:
            del found.generations[key]

    async def match_ledger_replication(self, box: str, ledger: str) -> str:  # noqa: ARG002
        """Do nothing: memory has no replicas."""
        return ""

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:  # noqa: ARG002
        """Store the status of a worker without a subscription; None deletes it."""
        self._server.raise_if_down()
        if status is None:
            self._server.ledgers[ledger].worker_statuses.pop(pod, None)
        else:
            self._server.ledgers[ledger].worker_statuses[pod] = status

    def monitor(self) -> BoxMonitor:
        """Return a new monitor."""
        from deadletter.brokers.memory.monitor import MemoryMonitor

        return MemoryMonitor(self._server)


def _add_partitions(box: MemoryBox, spec: BoxSpec) -> MemoryBox:
    if not spec.is_retry_box and spec.partitions is not None and spec.partitions < len(box.partitions):
        raise BoxConflict(
            f"box {spec.name} has {len(box.partitions)} partitions and cannot shrink to {spec.partitions}"
        )
    if box.spec.is_retry_box != spec.is_retry_box:
        kind = "a" if box.spec.is_retry_box else "not a"
        raise BoxConflict(f"box {spec.name} exists and is {kind} retry box; choose another name")
    box.add_partitions(1 if spec.is_retry_box else spec.partitions or 1)
    box.spec = spec
    return box
