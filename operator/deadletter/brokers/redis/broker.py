"""One open connection to a Redis: the whole contract."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from deadletter.brokers.contract import BoxMonitor, Offsets
from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.group_offsets import StartPosition
from deadletter.brokers.redis import groups, keys, streams
from deadletter.brokers.redis import ledger as ledgers
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.monitor import RedisMonitor
from deadletter.brokers.redis.packed_selection import read_selection
from deadletter.brokers.redis.partition_writer import RedisPartitionWriter
from deadletter.brokers.redis.publish import PendingEntry, WriteGuard, publish
from deadletter.brokers.redis.reads import read_span
from deadletter.brokers.redis.subscription import RedisSubscription
from deadletter.brokers.types import BoxState, Publication, ResumedGroup, ServerInfo, StoredMessage, SubscriptionSpec
from deadletter.core.boxes import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.names import archive_name
from deadletter.core.replay_progress import PartitionProgress, Span

IDENTITY_KEY = "{dlq-operator}.server"


class RedisBroker:
    """Keeps the contract of `base.Broker`. A stream is a box of one partition."""

    def __init__(self, client: RedisClient, address: str) -> None:
        self._client, self._address = client, address

    async def server_info(self) -> ServerInfo:
        """Who answers; NotSupported when it is a node of a Cluster or a Sentinel."""
        facts = await streams.read_version(self._client)
        return ServerInfo("Redis", facts.version, 1, transactions=False, id=await self._read_identity())

    async def _read_identity(self) -> str:
        """A name kept in the database itself, so that two addresses of one Redis are one; without the right to
        write it, the address.
        """
        try:
            await self._client.command("SET", IDENTITY_KEY, secrets.token_hex(11), "NX")
            found: bytes | None = await self._client.command("GET", IDENTITY_KEY)
        except BrokerError:
            return self._address
        return found.decode() if found else self._address

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        """Those that exist, in one request."""
        return await streams.describe(self._client, names)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        """Make an empty stream, or an empty retry box."""
        return await streams.ensure(self._client, spec)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete boxes and ledgers with all that lies beside them."""
        await streams.delete(self._client, names)

    async def window(self, box: str, archived: bool = False) -> tuple[Span, ...]:
        """First entry and the one after the last that was ever added."""
        return (await streams.window(self._client, archive_name(box) if archived else box, optional=archived),)

    async def read(
        self, box: str, spans: Sequence[Span], archived: bool = False
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Entries of these spans; archived letters lie in a stream of their own."""
        for span in spans:
            async with aclosing(read_span(self._client, archive_name(box) if archived else box, span)) as batches:
                async for batch in batches:
                    yield batch

    async def settled_offsets(self, box: str, ledger: str) -> Mapping[int, Offsets]:  # noqa: ARG002 (they are gone)
        """Settled letters are gone."""
        return {}

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Publish; the same letter is not published again in the same box within 7 days."""
        parcels = [PendingEntry(one.to, one.message, f"{one.letter.box}/{one.letter.id}", one.due_at) for one in publications]
        await publish(self._client, parcels, WriteGuard())

    @asynccontextmanager
    async def partition_writer(
        self, box: str, ledger: str, partition: int, uid: str, archived: bool = False
    ) -> AsyncIterator[RedisPartitionWriter]:
        """Become the settler; every other one is fenced from now on."""
        if partition != 0:
            raise BoxMissing(f"a stream has one partition, there is no {partition}")
        stream, kept = archive_name(box) if archived else box, archive_name(box)
        if not archived:
            await streams.window(self._client, box)
        token = await self._client.command("INCR", keys.fence(stream))
        mover = RedisPartitionWriter(self._client, stream, kept, ledger, uid, token)
        await mover.open()
        try:
            yield mover
        finally:
            await mover.close()

    @asynccontextmanager
    async def subscribe(self, spec: SubscriptionSpec) -> AsyncIterator[RedisSubscription]:
        """Join the group; leaving gives back what is still held."""
        desk = RedisSubscription(self._client, spec)
        await desk.open()
        try:
            yield desk
        finally:
            await desk.close()

    async def is_group_lost(self, source: str, group: str) -> bool:
        """True if there are messages and no group."""
        return await groups.is_lost(self._client, source, group)

    async def resume_group(self, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
        """Make the group again."""
        return await groups.resume(self._client, source, group, start)

    async def selected_offsets(self, ledger: str, uid: str) -> Mapping[int, Offsets]:
        """What a DryRun selected."""
        selection = await read_selection(self._client, ledger, uid)
        return {0: selection} if selection else {}

    async def published_positions(self, ledger: str, uid: str) -> ledgers.RedisPublishedPositions:
        """Where a Replay published."""
        return ledgers.RedisPublishedPositions(await ledgers.read_list(self._client, keys.produced(ledger, uid)))

    async def replay_progress(self, ledger: str) -> Mapping[str, Sequence[PartitionProgress]]:
        """What every Replay has counted."""
        return ledgers.parse_ledger(ledger, await self._client.command("HGETALL", ledger)).tallies

    async def delete_replay_records(self, ledger: str, uid: str) -> None:
        """Remove what a deleted Replay left."""
        await ledgers.delete_replay_records(self._client, ledger, uid)

    async def reset_ledger(self, box: str, ledger: str) -> None:
        """Nothing is kept of settled letters: a stream made anew is never mistaken for the old one."""

    async def match_ledger_replication(self, box: str, ledger: str) -> str:  # noqa: ARG002 (a key has no replicas of its own)
        """Nothing to do."""
        return ""

    async def report_status(self, box: str, ledger: str, pod: str, status: WorkerStatus | None) -> None:  # noqa: ARG002
        """Keep the word of a worker without a desk."""
        await ledgers.write_status(self._client, ledger, pod, status)

    def monitor(self) -> BoxMonitor:
        """New, empty registers."""
        return RedisMonitor(self._client)
