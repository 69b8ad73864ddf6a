"""The boxes of one queue on a real broker, and couriers that work on them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication, StoredMessage
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from tests.workers.couriers import courier_assignment, running


class BrokerQueue:
    """The boxes of one queue on a real broker; their names begin with `prefix`."""

    def __init__(self, broker: Broker, spec: BrokerConnectionSpec, prefix: str) -> None:
        self.broker, self.spec, self.prefix = broker, spec, prefix

    async def create(self, partitions: int = 2) -> None:
        """Create the boxes, with three replicas if there are three brokers."""
        parts = None if self.spec.is_redis else partitions
        replicas = min((await self.broker.server_info()).brokers, 3)
        for name in ("orders", "dead", "other"):
            await self.broker.ensure(BoxSpec(self.prefix + name, parts, replicas))
        await self.broker.ensure(BoxSpec(self.prefix + "retry", parts, replicas, retention_ms=-1, is_retry_box=True))

    async def send(self, *messages: Message, partition: int | None = None) -> None:
        box = self.prefix + "orders"
        places = (Place("elsewhere", 0, uuid.uuid4().int >> 70) for _ in messages)
        publications = [Publication(box, one, place, partition) for one, place in zip(messages, places, strict=True)]
        await self.broker.publish(publications)

    async def buried(self, box: str = "dead") -> list[StoredMessage]:
        spans = await self.broker.window(self.prefix + box)
        return [stored async for batch in self.broker.read(self.prefix + box, spans) for stored in batch]

    async def until_buried(self, count: int, box: str = "dead") -> list[StoredMessage]:
        async with asyncio.timeout(120):
            while len(found := await self.buried(box)) < count:
                await asyncio.sleep(0.1)
        return found

    def assignment(self, url: str, **more):
        return courier_assignment(url, self.prefix, broker=self.spec.to_wire(), **more)

    def courier(self, assignment, pod: str = "pod-0"):
        return running(self.broker, assignment, pod)


@asynccontextmanager
async def producing(queue: BrokerQueue) -> AsyncIterator[AIOKafkaProducer]:
    """Start a producer, as an application would."""
    assert queue.spec.kafka is not None
    producer = AIOKafkaProducer(bootstrap_servers=queue.spec.kafka.bootstrap_servers, max_request_size=5 << 20)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()
