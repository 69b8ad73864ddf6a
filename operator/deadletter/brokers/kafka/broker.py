"""Implement the broker contract on Kafka; each method delegates to the module that does the work."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from pyroaring import BitMap64

from deadletter.brokers.contract import BoxMonitor, Offsets, PartitionWriter, Subscription
from deadletter.brokers.kafka import ledger as ledgers
from deadletter.brokers.kafka import ledger_topic, reads, send_batches, topics
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.driver_shutdown import discard_producer
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.monitor import KafkaMonitor
from deadletter.brokers.kafka.partition_writer import TimestampCache, open_partition_writer
from deadletter.brokers.kafka.subscription import group_offsets as groups
from deadletter.brokers.kafka.subscription.subscription import open_subscription
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.lost_offsets import StartPosition
from deadletter.brokers.newer_ledger_records import log_skipped_record
from deadletter.brokers.types import BoxState, Publication, ResumedGroup, ServerInfo, StoredMessage, SubscriptionSpec
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import CHUNK_BITS, Key, UnknownRecord, decode_chunk, decode_progress
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import PartitionProgress, Span


class KafkaPublishedPositions:
    """Where a Replay published, as one bitmap for each target partition."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], BitMap64] = {}

    def __len__(self) -> int:
        return sum(len(bits) for bits in self.offsets.values())

    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """True if the Replay published at this position."""
        return offset in self.offsets.get((topic, partition), ())


class KafkaBroker:
    """Implement `Broker` on one Kafka cluster."""

    def __init__(self, kafka: KafkaClient) -> None:
        self._kafka = kafka
        self._timestamps = TimestampCache()

    async def server_info(self) -> ServerInfo:
        """Return version, size and id of the cluster."""
        return await topics.describe_server(self._kafka)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Return the state of each topic that exists."""
        return await topics.describe_topics(self._kafka, names)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Create the topic, or add partitions and configs that it lacks."""
        return await topics.ensure_topic(self._kafka, spec)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete the topics that exist."""
        await topics.delete_topics(self._kafka, names)

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """Return the start and end offset of each partition; archived letters are in the same topic."""
        del archived
        return await reads.window(self._kafka, box)

    async def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Yield the committed messages of these spans in order."""
        del archived
        async with aclosing(reads.read_spans(self._kafka, box, spans)) as batches:
            async for batch in batches:
                if batch:
                    self._timestamps.add(batch)
                yield batch

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:
        """Return the settled offsets of each partition."""
        entries = await ledgers.read_ledger(
            self._kafka, ledger, lambda key: (key.kind, key.subject) == ("settled", box)
        )
        found: dict[int, Settlements] = {}
        with translated(ledger):
            for key, (parsed, value) in entries.items():
                found.setdefault(parsed.partition, Settlements(box, parsed.partition)).load(key, value)
        return found

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish at least once, without settling and without a transaction."""
        if not publications:
            return
        limits = send_batches.TopicLimits(self._kafka)
        packed = await send_batches.pack_publications(publications, limits, in_transaction=False)
        producer = await self._kafka.start_producer()
        try:
            with translated(publications[0].to):
                await send_batches.send_batches(producer, packed)
        finally:
            await discard_producer(producer)

    def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AbstractAsyncContextManager[PartitionWriter]:
        """Fence every earlier writer of the partition and return the only one that can commit."""
        return open_partition_writer(self._kafka, box, ledger, partition, uid, archived, self._timestamps)

    def subscribe(self, spec: SubscriptionSpec) -> AbstractAsyncContextManager[Subscription]:
        """Join the group as a consumer of the source and the retry topic."""
        return open_subscription(self._kafka, spec)

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if the source holds messages and the group has no offset of it."""
        return await groups.has_lost_offsets(self._kafka, source, group)

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Commit offsets for a group that lost them."""
        return await groups.resume_group(self._kafka, source, group, start)

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """Return what a DryRun selected, per partition."""
        found: dict[int, Any] = {}
        async for parsed, offsets in self._read_chunks(ledger, "selected", uid):
            found.setdefault(parsed.partition, BitMap64()).update(offsets)
        return found

    async def published_positions(self, ledger: str, uid: str) -> KafkaPublishedPositions:
        """Return where a Replay published."""
        found = KafkaPublishedPositions()
        async for parsed, offsets in self._read_chunks(ledger, "produced", uid):
            found.offsets.setdefault((parsed.topic, parsed.partition), BitMap64()).update(offsets)
        return found

    async def _read_chunks(self, ledger: str, kind: str, uid: str) -> AsyncIterator[tuple[Key, list[int]]]:
        """Yield the offsets of one chunk at a time: 8 KiB in the ledger are up to 2 MiB as a list of numbers."""
        entries = await ledgers.read_ledger(self._kafka, ledger, lambda key: (key.kind, key.subject) == (kind, uid))
        with translated(ledger):
            for key, (parsed, value) in entries.items():
                yield parsed, [parsed.chunk << CHUNK_BITS | low for low in decode_chunk(key, value)]

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """Return what each Replay and redrive round has counted, by its uid."""
        found: dict[str, list[PartitionProgress]] = {}
        entries = await ledgers.read_ledger(self._kafka, ledger, lambda key: key.kind == "tally")
        with translated(ledger):
            for key, (parsed, value) in entries.items():
                try:
                    progress = decode_progress(key, value)
                except UnknownRecord:
                    log_skipped_record(ledger, key)
                else:
                    found.setdefault(parsed.subject, []).append(progress)
        return found

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Delete selection, published positions and progress of a deleted Replay."""
        kinds = ("selected", "produced", "tally")
        await ledgers.delete_keys(self._kafka, ledger, lambda key: key.kind in kinds and key.subject == uid)

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Fence the writers of the topic, then delete its settlements and marks."""
        for partition in range(await self._kafka.partition_count(box)):
            await (await TransactionalProducer.open(self._kafka, f"dlq.{box}.{partition}")).close()
        await ledgers.delete_keys(
            self._kafka, ledger, lambda key: key.kind in ("settled", "mark") and key.subject == box
        )

    async def match_ledger_replication(self, box: str, ledger: str) -> str:
        """Start to give an existing ledger the replicas of its dead topic; return what the broker refused."""
        return await ledger_topic.match_ledger_replication(self._kafka, ledger, box)

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:
        """Write the status of a worker without a subscription; None deletes it."""
        await ledger_topic.ensure_ledger(self._kafka, ledger, box)
        await ledgers.write_worker_status(self._kafka, ledger, pod, status)

    def monitor(self) -> BoxMonitor:
        """Return a new monitor without state."""
        return KafkaMonitor(self._kafka)
