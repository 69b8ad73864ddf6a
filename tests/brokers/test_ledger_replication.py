"""A ledger has as many replicas as its dead topic, whichever worker creates it, also if it was created with fewer."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from deadletter.brokers.contract import Broker
from deadletter.brokers.kafka import ledger_topic, topics
from deadletter.brokers.kafka.add_replicas import plan_added_replicas
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import now_ms
from tests.bed.kafka_cluster import KafkaCluster
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import TIMEOUT_S, Boxes, make_boxes
from tests.workers.replay_scene import Scene, letter

BROKER = "kafka_cluster"
# Settings of a user on the dead topic; only the first one is copied to the ledger.
DEAD = {"min.insync.replicas": "3", "retention.ms": "60000", "cleanup.policy": "compact,delete", "segment.ms": "60000",
        "max.message.bytes": "2000", "compression.type": "zstd"}  # fmt: skip


async def config(broker: Broker, topic: str) -> dict[str, str]:
    """Return the settings of the topic itself, without defaults."""
    admin = await broker._kafka.admin_client()  # type: ignore[attr-defined]
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for entry in answer.resources[0][4] if entry[3] == topics.SET_ON_TOPIC}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.2)


async def courier(broker: Broker, boxes: Boxes) -> None:
    async with broker.subscribe(boxes.subscription()):
        pass


async def replayer(broker: Broker, boxes: Boxes) -> None:
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1"):
        pass


async def redriver(broker: Broker, boxes: Boxes) -> None:
    await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", WorkerStatus("redrive-0", at=now_ms()))


@pytest.mark.parametrize("start_worker", [courier, replayer, redriver])
async def test_the_first_worker_creates_the_ledger_like_the_dead_topic(
    broker: Broker, kafka_cluster: KafkaCluster, start_worker: Any
) -> None:
    boxes = await make_boxes(broker, fresh_name("replicated"))
    await broker.ensure(BoxSpec(boxes.dead, config=DEAD))
    await start_worker(broker, boxes)
    assert [len(one.replicas) for one in kafka_cluster.partitions(boxes.ledger)] == [3, 3, 3]
    assert await config(broker, boxes.ledger) == ledger_topic.LEDGER_CONFIG | {"min.insync.replicas": "3"}


async def test_replicas_are_added_to_an_old_ledger_while_its_leaders_stay(
    broker: Broker, kafka_cluster: KafkaCluster
) -> None:
    boxes = await make_boxes(broker, fresh_name("raised"))
    await broker.ensure(BoxSpec(boxes.dead, config={"min.insync.replicas": "3"}))
    await broker.ensure(BoxSpec(boxes.ledger, 3, 1, config=ledger_topic.LEDGER_CONFIG))  # as 0.2.0 created it
    leaders = [one.leader for one in kafka_cluster.partitions(boxes.ledger)]
    assert await broker.match_ledger_replication(boxes.dead, boxes.ledger) == ""
    await until(lambda: all(len(one.in_sync) == 3 for one in kafka_cluster.partitions(boxes.ledger)))
    assert [one.leader for one in kafka_cluster.partitions(boxes.ledger)] == leaders
    assert "min.insync.replicas" not in await config(broker, boxes.ledger), "not before the replicas are in sync"
    assert await broker.match_ledger_replication(boxes.dead, boxes.ledger) == ""
    assert await config(broker, boxes.ledger) == ledger_topic.LEDGER_CONFIG | {"min.insync.replicas": "3"}


async def test_a_ledger_that_the_broker_refuses_to_raise_is_reported(
    broker: Broker, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = await make_boxes(broker, fresh_name("refused"))
    await broker.ensure(BoxSpec(boxes.ledger, 3, 1, config=ledger_topic.LEDGER_CONFIG))
    monkeypatch.setattr(
        ledger_topic, "plan_added_replicas", lambda current, _: {0: [*current[0], 99]}
    )  # there is no broker 99
    found = await broker.match_ledger_replication(boxes.dead, boxes.ledger)
    assert found == f"{boxes.ledger} has 1 of 3 replicas, and the broker refuses to raise it (BoxRefused)"
    assert [len(one.replicas) for one in kafka_cluster.partitions(boxes.ledger)] == [1, 1, 1]


async def test_a_topic_that_is_not_a_ledger_is_left_alone(broker: Broker, kafka_cluster: KafkaCluster) -> None:
    boxes = await make_boxes(broker, fresh_name("anothers"))
    assert await broker.match_ledger_replication(boxes.dead, boxes.ledger) == "", "there is none, and none is created"
    assert kafka_cluster.partitions(boxes.ledger) == []
    await broker.ensure(BoxSpec(boxes.ledger, 3, 1))
    assert await broker.match_ledger_replication(boxes.dead, boxes.ledger) == ""
    assert [len(one.replicas) for one in kafka_cluster.partitions(boxes.ledger)] == [1, 1, 1]


async def test_a_lost_disk_sends_no_letter_twice(broker: Broker, kafka_cluster: KafkaCluster) -> None:
    name = fresh_name("disk")
    scene = Scene(broker, name, {"kafka": {"bootstrapServers": kafka_cluster.servers}}, 3)
    await broker.ensure(BoxSpec(name, 2, 3))
    await broker.ensure(BoxSpec(scene.boxes.dead, 3, 3, retention_ms=-1))
    for partition in range(3):
        numbers = range(partition * 100, partition * 100 + 100)
        await scene.bury(*(letter(number, name) for number in numbers), partition=partition)
    assert (await scene.replay("uid-1")).reason == "AllReplayed"
    lost = kafka_cluster.leader(scene.boxes.ledger)
    kafka_cluster.kill(lost)
    for log in kafka_cluster.disk(lost).glob(f"{name}*"):
        shutil.rmtree(log)
    kafka_cluster.start(lost)
    kafka_cluster.wait_in_sync()
    assert (await scene.replay("uid-2")).reason == "NothingMatched"
    assert sorted(await scene.numbers()) == list(range(300))


@pytest.mark.parametrize(
    ("current", "like", "expected"),
    [
        ({0: (1,)}, {0: (1, 2, 3)}, {0: [1, 2, 3]}),
        ({0: (3,), 1: (1,), 2: (4,)}, {0: (1, 2, 3), 1: (2, 3, 1)}, {0: [3, 1, 2], 1: [1, 2, 3], 2: [4, 1, 2]}),
        ({0: (1, 2, 3), 1: (2, 3)}, {0: (1, 2, 3)}, {1: [2, 3, 1]}),
        ({0: (1, 2)}, {0: (3, 4, 5), 1: (1, 2)}, {}),
    ],
)
def test_replicas_are_added_on_the_brokers_of_the_dead_topic(current: Any, like: Any, expected: Any) -> None:
    assert plan_added_replicas(current, like) == expected
