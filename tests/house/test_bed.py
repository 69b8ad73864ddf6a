"""The bed's own promises: real parts that answer."""

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

from tests.bed import __main__ as bed_door
from tests.bed import tools
from tests.bed.control import ApiServer


def test_every_program_is_there_before_the_way_to_the_outside_is_shut() -> None:
    builders = {"go", "mvn", "javac"}  # asked for by what is built, before the bed stands
    assert set(tools.PACKAGES) - builders == set(bed_door.TOOLS)


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


def test_the_api_server_has_controllers(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("-n", namespace, "create", "configmap", "greeting", "--from-literal=hello=world")
    assert (
        api_server.kubectl("-n", namespace, "get", "configmap", "greeting", "-o", "jsonpath={.data.hello}") == "world"
    )
    assert api_server.kubectl("get", "namespace", namespace, "-o", "jsonpath={.status.phase}") == "Active"
