"""Settlements leave the ledger when their letters are trimmed from the retry topic, in bounded steps."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from pyroaring import BitMap

from deadletter.brokers.kafka import ledger as ledgers
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.types import MonitoredBox
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import encode_chunk, settled_key
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from deadletter.workers.courier.main import subscription_spec
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until

PARKING = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms", "max": "300ms"}, "maxAttempts": 3}
CHUNK = 65_536  # offsets of one settlement record


@pytest.fixture
async def left_behind(kafka_queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Return the keys of settled chunks that an older release left in the ledger; their letters are trimmed."""
    monkeypatch.setattr(retry_partition, "TRIM_INTERVAL_S", 0.0)
    monkeypatch.setattr(retry_partition, "START_DURABLE_AFTER_S", 0.0)
    await kafka_queue.create(1)
    broker: Any = kafka_queue.broker
    ledger, retry = f"{kafka_queue.prefix}dead.ledger", f"{kafka_queue.prefix}retry"
    reasons = (SettledAs.Delivered, SettledAs.Superseded, SettledAs.Buried)
    keys = [settled_key(retry, 0, reason, chunk) for chunk in (0, 1) for reason in reasons]
    assignment = kafka_queue.assignment("http://127.0.0.1:1/")
    async with kafka_queue.broker.subscribe(subscription_spec(assignment, "pod-0")) as subscription:
        await subscription.report_status(WorkerStatus("pod-0", at=1))  # creates the ledger
    records = [(key, encode_chunk(key, BitMap(range(CHUNK)))) for key in keys]
    await ledgers.write_without_transaction(broker._kafka, ledger, {0: records})
    await fill(kafka_queue, retry, 2 * CHUNK)
    admin = await broker._kafka.admin_client()
    await admin.delete_records({TopicPartition(retry, 0): RecordsToDelete(2 * CHUNK)})
    return set(keys)


async def fill(queue: BrokerQueue, topic: str, count: int) -> None:
    """Write `count` empty records to partition 0."""
    assert queue.spec.kafka is not None
    producer = AIOKafkaProducer(bootstrap_servers=queue.spec.kafka.bootstrap_servers)
    await producer.start()
    try:
        for _ in range(0, count, 1_024):
            batch = producer.create_batch()
            for _ in range(1_024):
                assert batch.append(key=None, value=b"", timestamp=None) is not None
            await (await producer.send_batch(batch, topic, partition=0))
    finally:
        await producer.stop()


async def settled_keys(queue: BrokerQueue) -> set[bytes]:
    broker: Any = queue.broker
    return set(
        await ledgers.read_ledger(broker._kafka, f"{queue.prefix}dead.ledger", lambda one: one.kind == "settled")
    )


async def test_what_was_left_behind_is_removed_in_bounded_steps(
    kafka_queue: BrokerQueue, left_behind: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "MAX_TOMBSTONES", 4)
    attempts: Counter[bytes] = Counter()

    def answer(request: Received) -> web.Response:
        attempts[request.body] += 1
        return web.Response(status=200 if attempts[request.body] > 1 else 503)

    async def until_left(count: int) -> None:
        async with asyncio.timeout(60):
            while len(left_behind & await settled_keys(kafka_queue)) != count:
                await asyncio.sleep(0.1)

    await until_left(6)
    async with serving(answer) as service:
        assignment = kafka_queue.assignment(service.url, policy=PARKING, delivery={"inlineLimit": "100ms"})
        async with kafka_queue.courier(assignment):
            await kafka_queue.send(message("first"))
            await until_left(2)
            await kafka_queue.send(message("second"))
            await until_left(0)
            await until(lambda: attempts == {b"first": 2, b"second": 2})
    assert await settled_keys(kafka_queue) == {settled_key(f"{kafka_queue.prefix}retry", 0, SettledAs.Delivered, 2)}, (
        "those of letters that may still be in the topic stay"
    )


async def test_settlements_stay_while_a_killed_broker_could_bring_their_letters_back(
    kafka_queue: BrokerQueue, left_behind: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "START_DURABLE_AFTER_S", 3_600.0)
    attempts: Counter[bytes] = Counter()

    def answer(request: Received) -> web.Response:
        attempts[request.body] += 1
        return web.Response(status=200 if attempts[request.body] > 1 else 503)

    async with serving(answer) as service:
        assignment = kafka_queue.assignment(service.url, policy=PARKING, delivery={"inlineLimit": "100ms"})
        async with kafka_queue.courier(assignment):
            await kafka_queue.send(message("first"))
            await until(lambda: attempts[b"first"] == 2)
    assert len(await settled_keys(kafka_queue)) == 7
    assert left_behind < await settled_keys(kafka_queue)


async def test_a_removed_chunk_is_no_loss_for_the_sweep(kafka_queue: BrokerQueue) -> None:
    """The courier settles, trims and removes a chunk between two sweeps, and the ledger is compacted."""
    await kafka_queue.create(1)
    broker: Any = kafka_queue.broker
    retry, ledger = f"{kafka_queue.prefix}retry", f"{kafka_queue.prefix}dead.ledger"
    box, monitor = MonitoredBox(f"{kafka_queue.prefix}dead", ledger, retry), kafka_queue.broker.monitor()
    await kafka_queue.broker.report_status(box.dead, ledger, "pod-0", WorkerStatus("pod-0", at=1))
    await fill(kafka_queue, retry, CHUNK)
    await fill(kafka_queue, retry, 1_024)
    first: Any = (await monitor.sweep([box], now_ms()))[box.dead]
    assert (first.parked, first.lost) == (CHUNK + 1_024, 0)
    admin = await broker._kafka.admin_client()
    await admin.delete_records({TopicPartition(retry, 0): RecordsToDelete(CHUNK)})
    key = settled_key(retry, 0, SettledAs.Delivered, 0)
    await ledgers.write_without_transaction(broker._kafka, ledger, {0: [(key, None)]})
    later: list[Any] = [(await monitor.sweep([box], now_ms()))[box.dead] for _ in range(3)]
    assert [(one.parked, one.lost) for one in later] == [(1_024, 0)] * 3
    await monitor.close()
