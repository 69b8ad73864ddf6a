"""The bed's own promises: real parts that answer."""

import uuid

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import CoordinationType
from redis.asyncio import Redis

from tests.bed import __main__ as bed_cli
from tests.bed import processes, tools
from tests.bed.control import ApiServer
from tests.bed.kafka_cluster import KafkaCluster
from tests.bed.redis_sentinel import RedisSentinel


def test_every_program_is_there_before_the_way_to_the_outside_is_shut() -> None:
    builders = {"go", "mvn", "javac"}  # asked for by what is built, before the bed stands
    assert set(tools.PACKAGES) - builders == set(bed_cli.TOOLS)


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


def test_a_broker_of_the_cluster_is_killed_and_loses_its_disk_and_catches_up(kafka_cluster: KafkaCluster) -> None:
    meta = kafka_cluster.disk(2) / "meta.properties"
    before = meta.read_text()
    kafka_cluster.kill(2)
    assert not kafka_cluster.is_running(2)
    kafka_cluster.empty_disk(2)
    kafka_cluster.start(2)
    kafka_cluster.wait_in_sync()
    assert meta.read_text() != before


async def test_leaders_and_coordinators_of_the_cluster_are_found_and_leaders_moved(kafka_cluster: KafkaCluster) -> None:
    topic, identity = f"leaders-{uuid.uuid4().hex[:8]}", f"id-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap, transactional_id=identity)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 3)])
        await producer.start()
        found = await producer.client.coordinator_lookup(CoordinationType.TRANSACTION, identity)
    finally:
        await producer.stop()
        await admin.close()
    assert kafka_cluster.transaction_coordinator(identity) == found
    before = {(one.topic, one.number): one.leader for one in kafka_cluster.partitions(topic)}
    kafka_cluster.move_leaders(topic)
    after = {(one.topic, one.number): one.leader for one in kafka_cluster.partitions(topic)}
    assert before.keys() == after.keys()
    assert all(before[place] != after[place] for place in after)


def test_the_replica_takes_over_when_the_primary_is_killed(redis_sentinel: RedisSentinel) -> None:
    first = redis_sentinel.primary
    redis_sentinel.kill(first)
    processes.wait_until("failover", lambda: redis_sentinel.primary != first, 60)
    redis_sentinel.heal()
    assert redis_sentinel.primary != first


def test_the_api_server_has_controllers(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("-n", namespace, "create", "configmap", "greeting", "--from-literal=hello=world")
    assert (
        api_server.kubectl("-n", namespace, "get", "configmap", "greeting", "-o", "jsonpath={.data.hello}") == "world"
    )
    assert api_server.kubectl("get", "namespace", namespace, "-o", "jsonpath={.status.phase}") == "Active"
