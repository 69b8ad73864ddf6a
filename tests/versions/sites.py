"""One broker that several versions work on, with raw access to its ledgers."""

from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from redis.asyncio import Redis

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import Publication
from deadletter.core.box_types import BoxStats
from deadletter.core.letters import Message, Place
from deadletter.wall_clock import now_ms
from tests.brokers.helpers import Boxes

Records = Iterable[tuple[bytes, bytes]]


@dataclass
class Site:
    """A broker of the test bed: its kind, its address, and a connection opened by this version."""

    kind: str
    address: str
    spec: BrokerConnectionSpec
    broker: Broker

    async def write_ledger(self, ledger: str, records: Records, partition: int = 0) -> None:
        """Append records to an existing ledger, as another version would."""
        if self.kind == "kafka":
            await self.broker.publish(
                [Publication(ledger, Message(key, value), Place("test", 0, 0), partition) for key, value in records]
            )
            return
        async with Redis.from_url(self.address) as client:
            await client.hset(ledger, mapping=dict(records))

    async def read_ledger(self, ledger: str) -> list[tuple[bytes, bytes | None]]:
        """Return every record of a ledger as it is stored; on Kafka of partition 0."""
        if self.kind == "redis":
            async with Redis.from_url(self.address) as client:
                return list((await client.hgetall(ledger)).items())
        partition = TopicPartition(ledger, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            found = []
            while await consumer.position(partition) < end:
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += [(record.key, record.value) for record in batch]
            return found
        finally:
            await consumer.stop()

    async def box_stats(self, boxes: Boxes) -> BoxStats:
        """Return what a sweep of this version reads of one queue."""
        monitor = self.broker.monitor()
        try:
            found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
        finally:
            await monitor.close()
        assert not isinstance(found, BrokerError), found
        return found
