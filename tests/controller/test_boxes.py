"""Topics are kept in their configured state; foreign settings and adopted topics are left alone."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from deadletter.brokers.kafka.ledger_topic import LEDGER_CONFIG
from tests.bed.kafka_cluster import KafkaCluster
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until

Admin = AIOKafkaAdminClient


def ask(kafka: str, work: Callable[[Admin], Awaitable[Any]]) -> Any:
    """Do something as an administrator of the broker."""

    async def connected() -> Any:
        admin = Admin(bootstrap_servers=kafka)
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(connected())


def configs(kafka: str, topic: str) -> dict[str, str]:
    answers = ask(kafka, lambda admin: admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
    return {entry[0]: entry[1] for answer in answers for one in answer.resources for entry in one[4]}


def partitions(kafka: str, topic: str) -> int:
    (found,) = ask(kafka, lambda admin: admin.describe_topics([topic]))
    return len(found["partitions"])


def configure(kafka: str, topic: str, **config: str) -> None:
    given = {name.replace("_", "."): value for name, value in config.items()}
    ask(kafka, lambda admin: admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, given)]))


def test_configuration_drift_is_corrected(kube: KubeNamespace, operator: OperatorProcess, kafka: str) -> None:
    kube.kafka(kafka)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    asked = {"name": dead, "retention": "24h", "config": {"max.message.bytes": "2000000"}}
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": asked})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    configure(kafka, dead, retention_ms="60000", retention_bytes="5000000", segment_ms="700000")
    wait_until("put right", lambda: configs(kafka, dead)["retention.ms"] == "86400000")
    found = configs(kafka, dead)
    assert (found["max.message.bytes"], found["message.timestamp.type"]) == ("2000000", "LogAppendTime")
    assert found["segment.ms"] == "700000"
    assert (found["retention.bytes"], found["cleanup.policy"]) == ("-1", "delete")
    ask(kafka, lambda admin: admin.delete_topics([dead]))
    wait_until("made again", lambda: dead in ask(kafka, lambda admin: admin.list_topics()))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")


def test_partitions_grow_and_never_shrink(kube: KubeNamespace, operator: OperatorProcess, kafka: str) -> None:
    kube.kafka(kafka)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "partitions": 1}}
    kube.apply("DeadLetterQueue", "orders", spec)
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.apply("DeadLetterQueue", "orders", spec | {"dead": {"name": dead, "partitions": 3}})
    wait_until("grown", lambda: partitions(kafka, dead) == 3)
    ask(kafka, lambda admin: admin.create_partitions({dead: NewPartitions(5)}))
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "False", "PartitionShrinkRefused")
    kube.apply("DeadLetterQueue", "orders", spec | {"dead": {"name": dead, "partitions": 5}})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert partitions(kafka, dead) == 5


def test_boxes_take_the_messages_of_their_source_also_those_of_an_older_release(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], kafka: str
) -> None:
    source = f"orders-{uuid.uuid4().hex[:8]}"
    large = NewTopic(source, 1, 1, topic_configs={"max.message.bytes": "2000000"})
    ask(kafka, lambda admin: admin.create_topics([large]))
    kube.kafka(kafka)
    spec = {"source": {"name": source, "group": "billing"}, "delivery": {"http": {"url": "http://billing.example/"}}}
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, **spec})
    operator = start().wait_until_ready()
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "True")
    boxes = [f"{source}.billing.dlq", f"{source}.billing.dlq.retry"]

    def limits() -> list[tuple[str, str]]:
        found = [configs(kafka, box) for box in boxes]
        return [(one["max.message.bytes"], one["message.timestamp.type"]) for one in found]

    as_the_source = [(str(2_000_000 + 65_536), "LogAppendTime")] * 2
    assert limits() == as_the_source
    operator.stop()
    for box in boxes:  # as an older release created them
        configure(kafka, box, max_message_bytes="1048588", message_timestamp_type="CreateTime")
    start().wait_until_ready()
    wait_until("raised", lambda: limits() == as_the_source)


def test_an_adopted_box_is_left_as_it_is(kube: KubeNamespace, operator: OperatorProcess, kafka: str) -> None:
    kube.kafka(kafka)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "adopt": True}, "deletionPolicy": "Delete"}
    kube.apply("DeadLetterQueue", "orders", spec)
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "False", "BoxMissing")
    ask(kafka, lambda admin: admin.create_topics([NewTopic(dead, 2, 1, topic_configs={"retention.ms": "7777777"})]))
    kube.wait_for_condition("dlq", "orders", "Ready", "True", "Adopted")
    wait_until("read", lambda: kube.get("dlq", "orders")["status"].get("depth") == 0)
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    assert configs(kafka, dead)["retention.ms"] == "7777777"
    assert partitions(kafka, dead) == 2


def test_a_ledger_of_an_older_version_gets_the_replicas_of_its_dead_box(
    kube: KubeNamespace, operator: OperatorProcess, kafka_cluster: KafkaCluster
) -> None:
    defaults = {"partitions": 1, "replicationFactor": 3}
    connection = {"kafka": {"bootstrapServers": kafka_cluster.servers, "defaults": defaults}}
    kube.apply("BrokerConnection", "broker", connection)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    old = NewTopic(f"{dead}.ledger", 3, 1, topic_configs=LEDGER_CONFIG)
    ask(kafka_cluster.bootstrap, lambda admin: admin.create_topics([old]))
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead}}
    kube.apply("DeadLetterQueue", "orders", spec, annotations={"deadletter.dev/take-over": dead})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    wait_until("replicas", lambda: [len(one.replicas) for one in kafka_cluster.partitions(old.name)] == [3, 3, 3])
    assert kube.condition("dlq", "orders", "Degraded")["reason"] == "AsExpected"
