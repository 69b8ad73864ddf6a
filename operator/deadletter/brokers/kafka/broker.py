"""The contract on Kafka: each method is one call of the room that keeps it."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from pyroaring import BitMap64

from deadletter.brokers.contract import BoxMonitor, Offsets, PartitionWriter, Subscription
from deadletter.brokers.group_offsets import StartPosition
from deadletter.brokers.kafka import ledger as ledgers
from deadletter.brokers.kafka import reads, record_batches, topics
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.driver_internals import discard_producer
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.monitor import KafkaMonitor
from deadletter.brokers.kafka.partition_writer import open_mover
from deadletter.brokers.kafka.subscription import group as beginnings
from deadletter.brokers.kafka.subscription.subscription import open_subscription
from deadletter.brokers.kafka.timestamp_cache import TimestampCache
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.skipped_records import log_skipped
from deadletter.brokers.types import BoxState, Publication, ResumedGroup, ServerInfo, StoredMessage, SubscriptionSpec
from deadletter.core.box_spec import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import CHUNK_BITS, Key, UnknownRecord, decode_chunk, decode_progress
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import PartitionProgress, Span


class KafkaPublishedPositions:
    """Where a Replay published, as one bitmap a target partition."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], BitMap64] = {}

    def __len__(self) -> int:
        return sum(len(bits) for bits in self.offsets.values())

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Did it publish there?"""
        return offset in self.offsets.get((topic, partition), ())


class KafkaBroker:
    """See `base.Broker`."""

    def __init__(self, kafka: KafkaClient) -> None:
        self._kafka = kafka
        self._sightings = TimestampCache()

    async def server_info(self) -> ServerInfo:
        """Who answers."""
        return await topics.describe_server(self._kafka)

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """The topics among `names` that exist."""
        return await topics.describe_topics(self._kafka, names)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Make the topic as asked, or bring it there."""
        return await topics.ensure_topic(self._kafka, spec)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete topics."""
        await topics.delete_topics(self._kafka, names)

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """First and end offset of each partition; archived letters lie in the same topic."""
        del archived
        return await reads.window(self._kafka, box)

    async def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """What is committed in these spans."""
        del archived
        async with aclosing(reads.read_spans(self._kafka, box, spans)) as batches:
            async for batch in batches:
                if batch:
                    self._sightings.add(batch)
                yield batch

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:
        """Settled offsets per partition."""
        kept = await ledgers.read_ledger(self._kafka, ledger, lambda key: (key.kind, key.subject) == ("settled", box))
        found: dict[int, Settlements] = {}
        with translated(ledger):
            for key, (parsed, value) in kept.items():
                found.setdefault(parsed.partition, Settlements(box, parsed.partition)).load(key, value)
        return found

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish without settling: at least once."""
        if not publications:
            return
        packed = await record_batches.pack_publications(publications, record_batches.TopicLimits(self._kafka), in_transaction=False)
        producer = await self._kafka.start_producer()
        try:
            with translated(publications[0].to):
                await record_batches.send_batches(producer, packed)
        finally:
            await discard_producer(producer)

    def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AbstractAsyncContextManager[PartitionWriter]:
        """Become the settler of one box partition."""
        return open_mover(self._kafka, box, ledger, partition, uid, archived, self._sightings)

    def subscribe(self, spec: SubscriptionSpec) -> AbstractAsyncContextManager[Subscription]:
        """Join the group and work on the source and the retry box."""
        return open_subscription(self._kafka, spec)

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if there are messages and no offset of the group."""
        return await beginnings.has_lost_offsets(self._kafka, source, group)

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Commit the group's offsets."""
        return await beginnings.resume_group(self._kafka, source, group, start)

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """What the DryRun selected."""
        found: dict[int, Any] = {}
        async for parsed, bits in self._chunks(ledger, "selected", uid):
            found.setdefault(parsed.partition, BitMap64()).update(bits)
        return found

    async def published_positions(self, ledger: str, uid: str) -> KafkaPublishedPositions:
        """Where the Replay published."""
        found = KafkaPublishedPositions()
        async for parsed, bits in self._chunks(ledger, "produced", uid):
            found.offsets.setdefault((parsed.topic, parsed.partition), BitMap64()).update(bits)
        return found

    async def _chunks(self, ledger: str, kind: str, uid: str) -> AsyncIterator[tuple[Key, list[int]]]:
        """One after the other: a chunk is 8 KiB at most, its offsets as numbers are two MiB."""
        kept = await ledgers.read_ledger(self._kafka, ledger, lambda key: (key.kind, key.subject) == (kind, uid))
        with translated(ledger):
            for key, (parsed, value) in kept.items():
                yield parsed, [parsed.chunk << CHUNK_BITS | low for low in decode_chunk(key, value)]

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """What every Replay has counted."""
        found: dict[str, list[PartitionProgress]] = {}
        kept = await ledgers.read_ledger(self._kafka, ledger, lambda key: key.kind == "tally")
        with translated(ledger):
            for key, (parsed, value) in kept.items():
                try:
                    tally = decode_progress(key, value)
                except UnknownRecord:
                    log_skipped(ledger, key)
                else:
                    found.setdefault(parsed.subject, []).append(tally)
        return found

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Remove selection, produced and tally of a deleted Replay."""
        kinds = ("selected", "produced", "tally")
        await ledgers.delete_keys(self._kafka, ledger, lambda key: key.kind in kinds and key.subject == uid)

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Nothing of this box is settled any more; whoever settles it now is fenced first."""
        for partition in range(await self._kafka.partition_count(box)):
            await (await TransactionalProducer.open(self._kafka, f"dlq.{box}.{partition}")).close()
        await ledgers.delete_keys(
            self._kafka, ledger, lambda key: key.kind in ("settled", "mark") and key.subject == box
        )

    async def match_ledger_replication(self, box: str, ledger: str) -> str:
        """Bring an existing ledger to the replicas of its dead topic."""
        return await topics.match_ledger_replication(self._kafka, ledger, box)

    async def report_status(self, box: str, ledger: str, pod: str, word: WorkerStatus | None) -> None:
        """Keep the word of a worker without a desk."""
        await topics.ensure_ledger(self._kafka, ledger, box)
        await ledgers.write_worker_status(self._kafka, ledger, pod, word)

    def monitor(self) -> BoxMonitor:
        """A new, empty set of registers."""
        return KafkaMonitor(self._kafka)
