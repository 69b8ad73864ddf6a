"""An application that sends orders, as applications do: with the broker's ordinary client."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any


def orders(count: int, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """So many orders with running ids."""
    return [
        {"id": f"order-{number}", "amount": number, "currency": "EUR", **more} for number in range(first, first + count)
    ]


def mixed(*kinds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Orders of several kinds, each spread evenly over the whole."""
    placed = [(place / len(kind), order) for kind in kinds for place, order in enumerate(kind)]
    return [order for _, order in sorted(placed, key=lambda one: one[0])]


def send(broker: str, address: str, source: str, sent: Sequence[dict[str, Any]]) -> None:
    """Send orders to a topic or stream; a topic is made when it does not exist."""
    asyncio.run(_to_kafka(address, source, sent) if broker == "kafka" else _to_redis(address, source, sent))


async def _to_kafka(address: str, source: str, sent: Sequence[dict[str, Any]]) -> None:
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
        waiting = [await producer.send(source, json.dumps(one).encode(), key=one["id"].encode()) for one in sent]
        await asyncio.gather(*waiting)


async def _to_redis(address: str, source: str, sent: Sequence[dict[str, Any]]) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(address) as client:
        for order in sent:
            await client.xadd(source, {"key": order["id"], "value": json.dumps(order)})
