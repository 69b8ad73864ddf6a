"""The line to one cluster: every client is made here, with the credentials of the moment."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as driver
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.protocol.offset import OffsetRequest

from deadletter.brokers.errors import BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.kafka.driver_internals import StoppableConsumer, discard_producer
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.topic_metadata import TopicMetadata, TopicMetadataRequest, read_topics

REQUEST_TIMEOUT_MS = 15_000
KNOCK_TIMEOUT_MS = 5_000
START_TIMEOUT = 60.0
TRANSACTION_TIMEOUT_MS = 10_000
MAX_BATCH = 1 << 20
EARLIEST, LATEST = -2, -1
MOST_NAMES, MOST_PARTITIONS = 300, 1_000  # a request: its answer is taken apart in one turn of the event loop
_ABSENT = (driver.UnknownTopicOrPartitionError, driver.InvalidTopicError, driver.LeaderNotAvailableError)
Credentials = Callable[[], Mapping[str, Any]]
Guard = Callable[[Iterable[str]], Any]


class KafkaClient:
    """Makes clients of one cluster and asks the questions that need no consumer."""

    def __init__(self, servers: Sequence[str], credentials: Credentials, guard: Guard, name: str = "dlq") -> None:
        self._servers = list(servers)
        self._credentials = credentials
        self._guard = guard
        self._name = name
        self._client: AIOKafkaClient | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._dialled_with: Mapping[str, Any] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._replicas: dict[TopicPartition, tuple[tuple[int, ...], int]] = {}
        self._ids: dict[str, str] = {}
        # How the last transaction of an id ended: the coordinator tells it only until the id is opened again.
        self.last_outcomes: dict[str, bool] = {}
        self._lock = asyncio.Lock()
        self._made: WeakKeyDictionary[AIOKafkaConsumer, Mapping[str, Any]] = WeakKeyDictionary()

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._servers,
            "client_id": self._name,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            **self._credentials(),
        }

    async def shared_client(self) -> AIOKafkaClient:
        """The shared client; dialled again when the credentials changed."""
        async with self._lock:
            if self._client is not None and self._dialled_with != self._credentials():
                await self._hang_up()
            if self._client is None:
                await self._dial()
            return self._client

    async def admin_client(self) -> AIOKafkaAdminClient:
        """The shared admin client."""
        await self.shared_client()
        return self._admin

    async def _dial(self) -> None:
        await self._guard(server.rsplit(":", 1)[0] for server in self._servers)
        self._dialled_with = self._credentials()
        client, admin = AIOKafkaClient(**self._common()), AIOKafkaAdminClient(**self._common())
        try:
            with translated("the broker"):
                await client.bootstrap()
            # Bootstrap spoke only to addresses that were checked; those the cluster advertises come next.
            await self._guard(broker.host for broker in client.cluster.brokers())
            with translated("the broker"):
                await admin.start()
        except BaseException as error:
            await client.close()
            await admin.close()
            raise await self._explain(error) from error
        self._client, self._admin = client, admin

    async def _explain(self, error: BaseException) -> BaseException:
        """The driver hides why it failed: knock once more and listen."""
        if not isinstance(error, BrokerUnreachable):
            return error
        host, _, port = self._servers[0].rpartition(":")
        try:
            options = self._common() | {"request_timeout_ms": KNOCK_TIMEOUT_MS}
            del options["bootstrap_servers"]
            connection = await create_conn(host, int(port), **options)
            connection.close()
        except (TimeoutError, driver.KafkaError, OSError) as cause:
            return translate(cause, "the broker")
        return error

    async def _hang_up(self) -> None:
        client, admin, self._client, self._admin = self._client, self._admin, None, None
        for one in (client, admin):
            if one is not None:
                with contextlib.suppress(driver.KafkaError, OSError, asyncio.TimeoutError):
                    await one.close()

    async def close(self) -> None:
        """Let go of the shared clients."""
        async with self._lock:
            await self._hang_up()

    async def partition_counts_or_errors(self, names: Sequence[str]) -> dict[str, int | BrokerError]:
        """Partitions of the topics among `names` that exist, or what forbids to say; none is made."""
        client = await self.shared_client()
        asked = list(dict.fromkeys(names))
        found: dict[str, int | BrokerError] = {}
        for first in range(0, len(asked), MOST_NAMES):
            found |= await self._lookup(client, asked[first : first + MOST_NAMES])
        return found

    async def send_to_any_broker(self, request: Any) -> Any:
        """The answer of any broker. A client that was connected before does not say why it no longer is: we ask."""
        client = await self.shared_client()
        try:
            with translated("the broker"):
                return await client.send(client.get_random_node(), request)
        except BrokerUnreachable as error:
            raise await self._explain(error) from error

    async def _lookup(self, client: AIOKafkaClient, names: list[str]) -> dict[str, int | BrokerError]:
        answer = await self.send_to_any_broker(TopicMetadataRequest(names))
        topics = read_topics(answer)
        await self._learn(client, topics, answer.brokers)
        found: dict[str, int | BrokerError] = {}
        for code, name, _, partitions in topics:
            kind = driver.for_code(code)
            if kind in (driver.NoError, driver.LeaderNotAvailableError) and partitions:
                found[name] = len(partitions)
            elif kind not in (driver.NoError, *_ABSENT):
                found[name] = translate(kind(), name)
        return found

    async def _learn(self, client: AIOKafkaClient, topics: list[TopicMetadata], brokers: Iterable[Any]) -> None:
        """Who leads which partition; the client's own map is replaced as a whole by each answer, so ours is kept."""
        for topic in topics:
            self._ids[topic.name] = topic.id
            for partition, leader, replicas, in_sync in topic.partitions:
                self._leaders[TopicPartition(topic.name, partition)] = leader
                self._replicas[TopicPartition(topic.name, partition)] = tuple(replicas), len(in_sync)
        if any(client.cluster.broker_metadata(broker[0]) is None for broker in brokers):
            await client.force_metadata_update()

    def leader(self, tp: TopicPartition) -> int:
        """Who leads it, as far as we were told."""
        return self._leaders[tp]

    def topic_id(self, topic: str) -> str:
        """The id of a topic as of the last lookup; empty if the broker gives none."""
        return self._ids.get(topic, "")

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """Has every partition a leader, as far as we were told?"""
        return all(self._leaders.get(TopicPartition(topic, p), -1) >= 0 for p in range(partitions))

    def replicas(self, topic: str, partitions: int) -> dict[int, tuple[int, ...]]:
        """The brokers that hold each partition, as the last metadata answer said."""
        return {p: self._replicas[TopicPartition(topic, p)][0] for p in range(partitions)}

    def in_sync_replicas(self, topic: str, partitions: int) -> int:
        """The fewest replicas in sync of any partition, as the last metadata answer said."""
        return min(self._replicas[TopicPartition(topic, p)][1] for p in range(partitions))

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """As `lookup`, but an error of one is raised."""
        found = await self.partition_counts_or_errors(names)
        for value in found.values():
            if isinstance(value, BrokerError):
                raise value
        return {name: value for name, value in found.items() if isinstance(value, int)}

    async def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; BoxMissing if there is none."""
        found = await self.partition_counts([topic])
        if topic not in found:
            raise BoxMissing(f"{topic}: it does not exist")
        return found[topic]

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], committed: bool = False
    ) -> dict[TopicPartition, int | BrokerError]:
        """Offsets of many partitions at EARLIEST or LATEST; a few requests a broker. Call `metadata` before."""
        client = await self.shared_client()
        found: dict[TopicPartition, int | BrokerError] = {}
        asked = list(wanted.items())
        for first in range(0, len(asked), MOST_PARTITIONS):
            by_node: dict[int, dict[str, list[tuple[int, int]]]] = {}
            for (topic, partition), time in asked[first : first + MOST_PARTITIONS]:
                node = self._leaders.get(TopicPartition(topic, partition), -1)
                by_node.setdefault(node, {}).setdefault(topic, []).append((partition, time))
            for node, topics in by_node.items():
                found |= await self._offsets_of(client, node, topics, committed)
        return found

    async def _offsets_of(
        self, client: AIOKafkaClient, node: int, topics: Mapping[str, list[tuple[int, int]]], committed: bool
    ) -> dict[TopicPartition, int | BrokerError]:
        if node == -1:
            missing = BrokerUnreachable("a partition has no leader")
            return {TopicPartition(topic, p): missing for topic, wanted in topics.items() for p, _ in wanted}
        with translated("the broker"):
            answer = await client.send(node, OffsetRequest(-1, int(committed), list(topics.items())))
        return {
            TopicPartition(topic, partition): translate(driver.for_code(code)(), topic) if code else offset
            for topic, partitions in answer.topics
            for partition, code, _, offset, *_ in partitions
        }

    async def offsets_at(self, topic: str, partitions: Iterable[int], time: int = LATEST) -> dict[int, int]:
        """End (high watermark) or EARLIEST offset of each partition; waits for a leader, raises any other error."""
        wanted = {TopicPartition(topic, partition): time for partition in partitions}
        deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
        while True:
            found = await self.list_offsets(wanted) if wanted.keys() <= self._leaders.keys() else {}
            wrong = next((one for one in found.values() if isinstance(one, BrokerError)), None)
            if found and wrong is None:
                return {tp.partition: offset for tp, offset in found.items() if isinstance(offset, int)}
            late = asyncio.get_running_loop().time() > deadline
            if wrong is not None and (late or not isinstance(wrong, BrokerUnreachable)):
                raise wrong
            if topic not in await self.partition_counts([topic]) or late:
                raise BoxMissing(f"{topic}: it does not exist")
            if wrong is not None:
                await asyncio.sleep(0.1)

    async def start_producer(self, transactional_id: str | None = None) -> AIOKafkaProducer:
        """A started producer; with an id it has fenced every earlier one of that id."""
        await self.shared_client()
        made = AIOKafkaProducer(
            **self._common(),
            acks="all",
            enable_idempotence=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_batch_size=MAX_BATCH,
            max_request_size=1 << 30,
        )
        with translated(transactional_id or "the broker"):
            try:
                await asyncio.wait_for(made.start(), START_TIMEOUT)
            except BaseException:
                await asyncio.shield(discard_producer(made))
                raise
        return made

    async def start_fetch_client(self, topic: str) -> AIOKafkaClient:
        """A client for one reader alone: a fetch that waits holds up every other answer on its connection."""
        await self.shared_client()
        made = AIOKafkaClient(**self._common())
        with translated("the broker"):
            try:
                await asyncio.wait_for(made.bootstrap(), START_TIMEOUT)
                await made.set_topics([topic])
            except BaseException:
                await made.close()
                raise
        return made

    async def start_consumer(self, **options: Any) -> AIOKafkaConsumer:
        """A started consumer that commits nothing by itself and sees only what is committed."""
        await self.shared_client()
        credentials = self._credentials()
        made = StoppableConsumer(
            **self._common(),
            **{
                "enable_auto_commit": False,
                "isolation_level": "read_committed",
                "auto_offset_reset": "earliest",
                "fetch_max_bytes": 16 << 20,
                "max_partition_fetch_bytes": 2 << 20,
                **options,
            },
        )
        with translated("the broker"):
            try:
                await asyncio.wait_for(made.start(), START_TIMEOUT)
            except BaseException:
                await asyncio.shield(made.stop())
                raise
        self._made[made] = credentials
        return made

    def has_current_credentials(self, consumer: AIOKafkaConsumer) -> bool:
        """Has it the credentials of the moment? Else it cannot dial again."""
        return self._made.get(consumer) == self._credentials()
