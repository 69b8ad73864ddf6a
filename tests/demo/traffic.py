"""An application that sends orders with an ordinary client of the broker."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any


def orders(count: int, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return orders with consecutive ids."""
    return [
        {"id": f"order-{number}", "amount": number, "currency": "EUR", **more} for number in range(first, first + count)
    ]


def mixed(*kinds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mix orders of several kinds, each spread evenly."""
    placed = [(place / len(kind), order) for kind in kinds for place, order in enumerate(kind)]
    return [order for _, order in sorted(placed, key=lambda one: one[0])]


def send(broker: str, address: str, source: str, messages: Sequence[dict[str, Any]]) -> None:
    """Send orders to a topic or stream; a missing topic is created."""
    asyncio.run(_to_kafka(address, source, messages) if broker == "kafka" else _to_redis(address, source, messages))


async def _to_kafka(address: str, source: str, messages: Sequence[dict[str, Any]]) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        if source not in await admin.list_topics():
            await admin.create_topics([NewTopic(source, num_partitions=3, replication_factor=1)])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        pending = [await producer.send(source, json.dumps(one).encode(), key=one["id"].encode()) for one in messages]
        await asyncio.gather(*pending)


async def _to_redis(address: str, source: str, messages: Sequence[dict[str, Any]]) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(address) as client:
        for order in messages:
            await client.xadd(source, {"key": order["id"], "value": json.dumps(order)})
