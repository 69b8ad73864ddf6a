"""The bed's own promises: real parts that answer."""

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis


async def test_kafka_answers(kafka: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        assert isinstance(await admin.list_topics(), list)
    finally:
        await admin.close()


async def test_redis_answers(redis: str) -> None:
    client = Redis.from_url(redis)
    try:
        assert await client.ping()
    finally:
        await client.aclose()
