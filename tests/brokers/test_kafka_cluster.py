"""The broker contract on a Kafka cluster of three brokers, and behaviour that needs several brokers."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import BrokerError, BrokerUnreachable
from deadletter.brokers.kafka import ledger_topic
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import now_ms
from tests.bed.kafka_cluster import IDS, KafkaCluster
from tests.brokers.broker_contract import BrokerContract
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import make_boxes

BROKER = "kafka_cluster"
WATCHERS = 12  # if each asked one random broker, one of them would miss the two that are up in nearly every run


class TestKafkaCluster(BrokerContract):
    """Three brokers with replicated topics fulfil the contract."""


async def test_a_new_ledger_can_be_written_at_once(broker: Broker) -> None:
    """Brokers learn of a new topic one after the other, and each request may go to any of them."""
    for _ in range(30):
        boxes = await make_boxes(broker, fresh_name("new"))
        await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", WorkerStatus("redrive-0", at=now_ms()))


@dataclass(frozen=True)
class Watcher:
    """A connection with a monitor, as the operator has one for each BrokerConnection."""

    broker: Broker
    monitor: BoxMonitor

    async def sweep(self, *boxes: MonitoredBox) -> dict[str, BoxStats | BrokerError]:
        return dict(await self.monitor.sweep(boxes, now_ms()))

    async def failures(self, *boxes: MonitoredBox) -> Counter[str]:
        """Probe, describe and sweep as the operator does, and count what failed."""
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "server_info": self.broker.server_info,
            "describe": partial(self.broker.describe, [one.dead for one in boxes]),
            "sweep": partial(self.sweep, *boxes),
        }
        found: Counter[str] = Counter()
        for name, call in calls.items():
            try:
                result = await call()
            except BrokerError as error:
                found[f"{name}: {type(error).__name__}"] += 1
            else:
                readings = result.values() if name == "sweep" and isinstance(result, dict) else ()
                found.update(f"queue: {type(one).__name__}" for one in readings if isinstance(one, BrokerError))
        return found


@asynccontextmanager
async def watching(cluster: KafkaCluster, count: int) -> AsyncIterator[list[Watcher]]:
    async with AsyncExitStack() as stack:
        watchers = []
        for _ in range(count):
            broker = await stack.enter_async_context(open_broker(kafka_at(cluster.bootstrap), no_secrets, LOOPBACK))
            watchers.append(Watcher(broker, broker.monitor()))
            stack.push_async_callback(watchers[-1].monitor.close)
        yield watchers


async def make_queue(broker: Broker, replicas: int) -> MonitoredBox:
    dead = fresh_name("watched")
    ledger = f"{dead}.ledger"
    await broker.ensure(BoxSpec(dead, 3, replicas, retention_ms=-1))
    config = ledger_topic.LEDGER_CONFIG | {"min.insync.replicas": "1"}
    await broker.ensure(BoxSpec(ledger, ledger_topic.LEDGER_PARTITIONS, 3, config=config))
    return MonitoredBox(dead, ledger)


async def total_failures(watchers: list[Watcher], *boxes: MonitoredBox, rounds: int = 2) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(rounds):
        for watcher in watchers:
            found += await watcher.failures(*boxes)
    return found


async def test_probes_and_sweeps_go_on_while_one_of_three_brokers_is_down(kafka_cluster: KafkaCluster) -> None:
    async with watching(kafka_cluster, WATCHERS) as watchers:
        queue = await make_queue(watchers[0].broker, 3)
        assert await total_failures(watchers, queue) == {}
        kafka_cluster.kill(3)
        async with asyncio.timeout(60):
            while any(one.leader in (-1, 3) for one in kafka_cluster.partitions(queue.dead, queue.ledger)):
                await asyncio.sleep(0.5)
        assert await total_failures(watchers, queue) == {}


async def test_a_partition_without_its_leader_fails_the_sweep_of_its_own_queue_only(
    kafka_cluster: KafkaCluster,
) -> None:
    async with watching(kafka_cluster, 1) as (watcher,):
        single, replicated = await make_queue(watcher.broker, 1), await make_queue(watcher.broker, 3)
        assert await total_failures([watcher], single, replicated) == {}
        kafka_cluster.kill(kafka_cluster.leader(single.dead))
        async with asyncio.timeout(60):
            while True:
                found = await watcher.sweep(single, replicated)
                assert isinstance(found[single.dead], BrokerUnreachable)
                if isinstance(found[replicated.dead], BoxStats):
                    break
                await asyncio.sleep(0.5)


async def test_no_probe_fails_while_the_brokers_restart_one_after_the_other(kafka_cluster: KafkaCluster) -> None:
    async with watching(kafka_cluster, WATCHERS) as watchers:
        queue = await make_queue(watchers[0].broker, 3)
        restarting = asyncio.create_task(asyncio.to_thread(restart_all, kafka_cluster))
        found: Counter[str] = Counter()
        while not restarting.done():
            found += await total_failures(watchers, queue, rounds=1)
        await restarting
        assert await total_failures(watchers, queue) == {}
    del found["queue: BrokerUnreachable"]  # a leader is away for a moment
    assert found == {}


def restart_all(cluster: KafkaCluster) -> None:
    for id_ in IDS:
        cluster.kill(id_, signal.SIGTERM)
        cluster.start(id_)
        cluster.wait_in_sync()
