"""Implement the broker contract on one Redis. A stream is a box of one partition."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from deadletter.brokers.contract import BoxMonitor, Offsets
from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.lost_offsets import StartPosition
from deadletter.brokers.redis import group_offsets, keys, stream_admin
from deadletter.brokers.redis import ledger as ledgers
from deadletter.brokers.redis import publish as publishing
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.monitor import RedisMonitor
from deadletter.brokers.redis.partition_writer import RedisPartitionWriter
from deadletter.brokers.redis.reads import read_span
from deadletter.brokers.redis.subscription import RedisSubscription
from deadletter.brokers.types import BoxState, Publication, ResumedGroup, ServerInfo, StoredMessage, SubscriptionSpec
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.names import archive_name
from deadletter.core.replay_progress import PartitionProgress, Span

IDENTITY_KEY = "{dlq-operator}.server"
# Tokens are random, because a failover may lose a counter's last value and give it out again. They are integers with
# room below the limit of INCR, because workers of 0.2.x take the next token with it.
MAX_FENCE_TOKEN = 1 << 62


class RedisBroker:
    """Implements `contract.Broker`."""

    def __init__(self, client: RedisClient, address: str) -> None:
        self._client, self._address = client, address

    async def server_info(self) -> ServerInfo:
        """Return version and identity; NotSupported for a Redis Cluster or a Sentinel."""
        found = await stream_admin.read_version(self._client)
        return ServerInfo("Redis", found.version, 1, transactions=False, id=await self._read_identity())

    async def _read_identity(self) -> str:
        """Return an id that is stored in the database, so that two addresses of one Redis are recognised as one.

        Without the right to write it, the address is returned.
        """
        try:
            await self._client.command("SET", IDENTITY_KEY, secrets.token_hex(11), "NX")
            found: bytes | None = await self._client.command("GET", IDENTITY_KEY)
        except BrokerError:
            return self._address
        return found.decode() if found else self._address

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Return the boxes that exist, in one request."""
        return await stream_admin.describe(self._client, names)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Create an empty stream or retry box if it is missing."""
        return await stream_admin.ensure(self._client, spec)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete boxes and ledgers with every key that belongs to them."""
        await stream_admin.delete(self._client, names)

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """Return the first offset and the one after the last that was ever added."""
        return (await stream_admin.window(self._client, archive_name(box) if archived else box, optional=archived),)

    async def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Read the entries of these spans; archived letters are in a stream of their own."""
        for span in spans:
            async with aclosing(read_span(self._client, archive_name(box) if archived else box, span)) as batches:
                async for batch in batches:
                    yield batch

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:  # noqa: ARG002
        """Return nothing, because settled letters are deleted from the stream."""
        return {}

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish; a letter is not published again to the same box within 7 days."""
        entries = [
            publishing.PendingEntry(one.to, one.message, f"{one.letter.box}/{one.letter.id}", one.due_at)
            for one in publications
        ]
        await publishing.publish(self._client, entries, publishing.WriteGuard())

    @asynccontextmanager
    async def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AsyncIterator[RedisPartitionWriter]:
        """Become the writer of the stream and fence every other writer."""
        if partition != 0:
            raise BoxMissing(f"a stream has one partition only; partition {partition} does not exist")
        archive = archive_name(box)
        stream = archive if archived else box
        if not archived:
            await stream_admin.window(self._client, box)
        token = secrets.randbelow(MAX_FENCE_TOKEN)
        await self._client.command("SET", keys.fence(stream), token)
        writer = RedisPartitionWriter(self._client, stream, archive, ledger, uid, token)
        await writer.open()
        try:
            yield writer
        finally:
            await writer.close()

    @asynccontextmanager
    async def subscribe(self, spec: SubscriptionSpec) -> AsyncIterator[RedisSubscription]:
        """Join the consumer group; at the end, release the claims that are still held."""
        subscription = RedisSubscription(self._client, spec)
        await subscription.open()
        try:
            yield subscription
        finally:
            await subscription.close()

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if the stream holds messages and the group does not exist."""
        return await group_offsets.is_lost(self._client, source, group)

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Create the lost group again at this position."""
        return await group_offsets.resume(self._client, source, group, start)

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """Return what a DryRun selected."""
        selection = await ledgers.read_selection(self._client, ledger, uid)
        return {0: selection} if selection else {}

    async def published_positions(self, ledger: str, uid: str) -> ledgers.RedisPublishedPositions:
        """Return where a Replay has published."""
        records = await ledgers.read_list(self._client, keys.produced(ledger, uid))
        return ledgers.RedisPublishedPositions(records)

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """Return the progress of every Replay."""
        return ledgers.parse_ledger(ledger, await self._client.command("HGETALL", ledger)).progress

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Delete the records of a deleted Replay."""
        await ledgers.delete_replay_records(self._client, ledger, uid)

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Do nothing: the ledger holds no settlements, so it cannot refer to letters of an earlier stream."""

    async def match_ledger_replication(self, box: str, ledger: str) -> str:  # noqa: ARG002
        """Do nothing: a key has no replicas of its own."""
        return ""

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:  # noqa: ARG002
        """Store the status of a worker without a subscription; None deletes it."""
        await ledgers.write_status(self._client, ledger, pod, status)

    def monitor(self) -> BoxMonitor:
        """Return a new monitor."""
        return RedisMonitor(self._client)
