"""Connect to one Kafka cluster and start the driver's clients, each with the credentials of the moment."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import errors as driver
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn

from deadletter.brokers.errors import BoxMissing, BrokerError, BrokerUnreachable
from deadletter.brokers.kafka.driver_shutdown import StoppableConsumer, discard_producer
from deadletter.brokers.kafka.errors import translate, translated
from deadletter.brokers.kafka.topic_metadata import MetadataCache, TopicMetadataRequest, read_topics

REQUEST_TIMEOUT_MS = 15_000
CONNECT_PROBE_TIMEOUT_MS = 5_000
FIRST_BROKERS_TIMEOUT_S = 5.0  # of each broker that is asked before the last one
START_TIMEOUT_S = 60.0
TRANSACTION_TIMEOUT_MS = 10_000
MAX_BATCH_BYTES = 1 << 20
MAX_REQUEST_BYTES = 1 << 30
FETCH_BYTES, PARTITION_FETCH_BYTES = 16 << 20, 2 << 20
MAX_TOPICS_PER_REQUEST = 300  # a response is parsed without a break, which holds up the event loop
_MISSING_TOPIC_ERRORS = (
    driver.UnknownTopicOrPartitionError,
    driver.InvalidTopicError,
    driver.LeaderNotAvailableError,
)
Credentials = Callable[[], Mapping[str, Any]]
AddressCheck = Callable[[Iterable[str]], Any]


class KafkaClient:
    """Connections to one cluster: shared clients for requests, and factories of producers and consumers."""

    def __init__(
        self, servers: Sequence[str], credentials: Credentials, check_addresses: AddressCheck, name: str = "dlq"
    ) -> None:
        self._servers = list(servers)
        self._credentials = credentials
        self._check_addresses = check_addresses
        self._name = name
        self._client: AIOKafkaClient | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._connected_with: Mapping[str, Any] = {}
        self._lock = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None
        self._producer_credentials: Mapping[str, Any] = {}
        self._producer_lock = asyncio.Lock()
        self._consumer_credentials: WeakKeyDictionary[AIOKafkaConsumer, Mapping[str, Any]] = WeakKeyDictionary()
        self.metadata = MetadataCache()
        # Whether the last transaction of a transactional id was committed. The coordinator forgets it as soon as the
        # id is opened again, so it is kept here for the case that opening fails halfway.
        self.last_outcomes: dict[str, bool] = {}

    def _client_options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._servers,
            "client_id": self._name,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            **self._credentials(),
        }

    async def shared_client(self) -> AIOKafkaClient:
        """Return the shared low-level client; connect it again if the credentials have changed."""
        async with self._lock:
            if self._client is not None and self._connected_with != self._credentials():
                await self._disconnect()
            if self._client is None:
                await self._connect()
            return self._client

    async def admin_client(self) -> AIOKafkaAdminClient:
        """Return the shared admin client."""
        await self.shared_client()
        return self._admin

    async def _connect(self) -> None:
        await self._check_addresses(server.rsplit(":", 1)[0] for server in self._servers)
        self._connected_with = self._credentials()
        client, admin = AIOKafkaClient(**self._client_options()), AIOKafkaAdminClient(**self._client_options())
        try:
            with translated("the broker"):
                await client.bootstrap()
            # Bootstrapping connects to checked addresses only; now check those that the cluster advertises.
            await self._check_addresses(broker.host for broker in client.cluster.brokers())
            with translated("the broker"):
                await admin.start()
        except BaseException as error:
            await client.close()
            await admin.close()
            raise await self._find_cause(error) from error
        self._client, self._admin = client, admin

    async def _find_cause(self, error: BaseException) -> BaseException:
        """Connect once more without the driver's client, which hides why a connection failed."""
        if not isinstance(error, BrokerUnreachable):
            return error
        host, _, port = self._servers[0].rpartition(":")
        try:
            options = self._client_options() | {"request_timeout_ms": CONNECT_PROBE_TIMEOUT_MS}
            del options["bootstrap_servers"]
            connection = await create_conn(host, int(port), **options)
            connection.close()
        except (TimeoutError, driver.KafkaError, OSError) as cause:
            return translate(cause, "the broker")
        return error

    async def _disconnect(self) -> None:
        client, admin, self._client, self._admin = self._client, self._admin, None, None
        for one in (client, admin):
            if one is not None:
                with contextlib.suppress(driver.KafkaError, OSError, asyncio.TimeoutError):
                    await one.close()

    async def close(self) -> None:
        """Close the shared clients and the shared producer."""
        async with self._producer_lock:
            await self._discard_shared_producer()
        async with self._lock:
            await self._disconnect()

    async def send_to_any_broker(self, request: Any) -> Any:
        """Send a request to one broker after the other until one responds, and return its response."""
        return await self.ask_any_broker(lambda _: request)

    async def ask_any_broker(self, request_for: Callable[[int], Any]) -> Any:
        """Do the same with a request that depends on the id of the broker; it may reach several brokers.

        A client that was connected before does not say why it no longer is, so the cause is looked for.
        """
        client = await self.shared_client()
        brokers = [broker.nodeId for broker in client.cluster.brokers()]
        random.shuffle(brokers)
        error = BrokerUnreachable("the broker: no broker of the cluster is known")
        for broker in brokers:
            try:
                with translated("the broker"):
                    async with asyncio.timeout(None if broker == brokers[-1] else FIRST_BROKERS_TIMEOUT_S):
                        return await client.send(broker, request_for(broker))
            except BrokerUnreachable as unreachable:
                error = unreachable
                client.force_metadata_update()  # it leaves out the brokers that are down
        raise await self._find_cause(error) from error

    async def partition_counts_or_errors(self, names: Sequence[str]) -> dict[str, int | BrokerError]:
        """Return the partition count of each topic that exists, or the error that hides it; creates no topic."""
        client = await self.shared_client()
        wanted = list(dict.fromkeys(names))
        found: dict[str, int | BrokerError] = {}
        for first in range(0, len(wanted), MAX_TOPICS_PER_REQUEST):
            found |= await self._request_metadata(client, wanted[first : first + MAX_TOPICS_PER_REQUEST])
        return found

    async def _request_metadata(self, client: AIOKafkaClient, names: list[str]) -> dict[str, int | BrokerError]:
        response = await self.send_to_any_broker(TopicMetadataRequest(names))
        topics = read_topics(response)
        self.metadata.update(topics)
        if any(client.cluster.broker_metadata(broker[0]) is None for broker in response.brokers):
            await client.force_metadata_update()
        found: dict[str, int | BrokerError] = {}
        for code, name, _, partitions in topics:
            kind = driver.for_code(code)
            if kind in (driver.NoError, driver.LeaderNotAvailableError) and partitions:
                found[name] = len(partitions)
            elif kind not in (driver.NoError, *_MISSING_TOPIC_ERRORS):
                found[name] = translate(kind(), name)
        return found

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the partition count of each topic that exists; raise the error of any topic."""
        found = await self.partition_counts_or_errors(names)
        for value in found.values():
            if isinstance(value, BrokerError):
                raise value
        return {name: value for name, value in found.items() if isinstance(value, int)}

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions the topic has; raise BoxMissing if it does not exist."""
        found = await self.partition_counts([topic])
        if topic not in found:
            raise BoxMissing(f"topic {topic} does not exist")
        return found[topic]

    async def start_producer(self, transactional_id: str | None = None) -> AIOKafkaProducer:
        """Return a started producer; with a transactional id it has fenced every earlier producer of that id."""
        await self.shared_client()
        producer = AIOKafkaProducer(
            **self._client_options(),
            acks="all",
            enable_idempotence=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
        )
        with translated(transactional_id or "the broker"):
            try:
                await asyncio.wait_for(producer.start(), START_TIMEOUT_S)
            except BaseException:
                await asyncio.shield(discard_producer(producer))
                raise
        return producer

    @asynccontextmanager
    async def shared_producer(self) -> AsyncIterator[AIOKafkaProducer]:
        """Lend the shared producer without transactions to one task at a time; an error in the block discards it.

        Brokers keep the state of every producer id for a day, so writers of small frequent records share one. The
        block must have a timeout: the driver repeats a send without limit.
        """
        async with self._producer_lock:
            credentials = self._credentials()
            if self._producer_credentials != credentials:
                await self._discard_shared_producer()
            if self._producer is None:
                self._producer, self._producer_credentials = await self.start_producer(), credentials
            try:
                yield self._producer
            except BaseException:
                await asyncio.shield(self._discard_shared_producer())
                raise

    async def _discard_shared_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)

    async def start_fetch_client(self, topic: str) -> AIOKafkaClient:
        """Return a client for one reader: a fetch that waits delays every other response on its connection."""
        await self.shared_client()
        client = AIOKafkaClient(**self._client_options())
        with translated("the broker"):
            try:
                await asyncio.wait_for(client.bootstrap(), START_TIMEOUT_S)
                await client.set_topics([topic])
            except BaseException:
                await client.close()
                raise
        return client

    async def start_consumer(self, **options: Any) -> AIOKafkaConsumer:
        """Return a started consumer that does not commit by itself and reads committed messages only."""
        await self.shared_client()
        credentials = self._credentials()
        consumer = StoppableConsumer(
            **self._client_options(),
            **{
                "enable_auto_commit": False,
                "isolation_level": "read_committed",
                "auto_offset_reset": "earliest",
                "fetch_max_bytes": FETCH_BYTES,
                "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
                **options,
            },
        )
        with translated("the broker"):
            try:
                await asyncio.wait_for(consumer.start(), START_TIMEOUT_S)
            except BaseException:
                await asyncio.shield(consumer.stop())
                raise
        self._consumer_credentials[consumer] = credentials
        return consumer

    def has_current_credentials(self, consumer: AIOKafkaConsumer) -> bool:
        """True if the consumer was started with the credentials of the moment; otherwise it cannot reconnect."""
        return self._consumer_credentials.get(consumer) == self._credentials()
