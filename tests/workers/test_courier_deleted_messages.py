"""Messages of the source that retention deleted before the courier read them are counted, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from structlog.testing import capture_logs

from deadletter.brokers.kafka.subscription import subscription as kafka_subscription
from deadletter.brokers.types import MonitoredBox
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import monotonic_ms, now_ms
from deadletter.workers import metrics
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.status import DeletedMessages, StatusReporter
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import MemoryQueue, courier_assignment, message, running
from tests.workers.http_service import Service, ok, serving, until

SENT = 400  # more than the courier fetches ahead


@pytest.fixture(autouse=True)
def quick_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subscription, "LAG_INTERVAL_S", 0.2)


async def delete_records(queue: BrokerQueue, below: int) -> None:
    """Delete the start of partition 0 of the source, as retention does."""
    broker: Any = queue.broker
    admin = await broker._kafka.admin_client()
    await admin.delete_records({TopicPartition(queue.prefix + "orders", 0): RecordsToDelete(below)})


async def heartbeat(queue: BrokerQueue) -> WorkerStatus | None:
    """Return the heartbeat of the only courier, as a sweep reads it."""
    monitor = queue.broker.monitor()
    try:
        box = MonitoredBox(queue.prefix + "dead", queue.prefix + "dead.ledger", queue.prefix + "retry")
        stats: Any = (await monitor.sweep([box], now_ms()))[box.dead]
        return next(iter(stats.couriers), None)
    finally:
        await monitor.close()


async def test_messages_deleted_before_they_were_read_are_counted_in_the_log(kafka_queue: BrokerQueue) -> None:
    with capture_logs() as logs:
        async with trimmed_while_suspended(kafka_queue) as (_, service):
            await kafka_queue.send(message("last"))
            await until(lambda: b"last" in service.bodies)
    lost = SENT + 2 - len(service.received)
    assert lost > 0
    assert any(lost in entry.values() for entry in logs if entry["log_level"] in ("warning", "error"))


async def test_messages_deleted_before_they_were_read_are_not_lag(kafka_queue: BrokerQueue) -> None:
    async with trimmed_while_suspended(kafka_queue) as (courier, service):
        await until(lambda: courier._subscription.lag == 0)
        assert len(service.received) <= SENT
        assert courier._subscription.deleted_messages == SENT + 1 - len(service.received)


@asynccontextmanager
async def trimmed_while_suspended(queue: BrokerQueue) -> AsyncIterator[tuple[Courier, Service]]:
    """Run a courier that was suspended while messages arrived and were deleted."""
    await queue.create(1)
    paused = ""
    async with (
        serving(ok) as service,
        running(queue.broker, queue.assignment(service.url), paused=lambda: paused) as courier,
    ):
        await queue.send(message("first"))
        await until(lambda: service.bodies == [b"first"])
        paused = "Suspended"
        await until(lambda: courier.gate.pause_reason(monotonic_ms())[0] == "Suspended")
        await queue.send(*(message("x" * 20_000, f"k{n}") for n in range(SENT)))  # more than is prefetched
        await until(lambda: courier._subscription.lag > SENT // 2)  # it has noticed the new messages
        await delete_records(queue, SENT + 1)
        paused = ""
        yield courier, service


async def test_messages_deleted_while_no_courier_ran_are_counted_once(kafka_queue: BrokerQueue) -> None:
    await kafka_queue.create(1)
    async with serving(ok) as service:
        assignment = kafka_queue.assignment(service.url, queue=kafka_queue.prefix)
        async with kafka_queue.courier(assignment):
            await kafka_queue.send(message("first"))
            await until(lambda: service.bodies == [b"first"])
        await kafka_queue.send(*(message(f"lost{n}") for n in range(7)))
        await delete_records(kafka_queue, 8)
        async with kafka_queue.courier(assignment) as courier:
            assert courier._subscription.deleted_messages == 7
            await until(lambda: metrics.SOURCE_MESSAGES_DELETED.labels("test", kafka_queue.prefix)._value.get() == 7)
            async with asyncio.timeout(60):
                while (found := await heartbeat(kafka_queue)) is None or found.deleted != 7:
                    await asyncio.sleep(0.1)
            assert 0 < found.deleted_at <= now_ms()
            await kafka_queue.send(message("second"))
            await until(lambda: service.bodies == [b"first", b"second"])
        async with kafka_queue.courier(assignment) as courier:
            assert courier._subscription.deleted_messages == 0


async def test_markers_of_transactions_are_not_counted_as_messages(kafka_queue: BrokerQueue) -> None:
    await kafka_queue.create(1)
    source = kafka_queue.prefix + "orders"
    async with serving(ok) as service:
        assignment = kafka_queue.assignment(service.url)
        async with kafka_queue.courier(assignment) as courier:
            await send_in_transactions(kafka_queue, source, b"one", b"aborted", b"two", b"aborted")
            await until(lambda: service.bodies == [b"one", b"two"])
            (span,) = await kafka_queue.broker.window(source)
            await until(lambda: courier._subscription.lag == 0)  # reading has passed the last marker
            await delete_records(kafka_queue, span.end)
            await kafka_queue.send(message("three"))
            await until(lambda: len(service.bodies) == 3)
            assert courier._subscription.deleted_messages == 0
            await until(lambda: courier._subscription.lag == 0)
        await delete_records(kafka_queue, span.end + 1)
        async with kafka_queue.courier(assignment) as courier:
            assert courier._subscription.deleted_messages == 0


async def test_a_courier_that_ended_behind_markers_counts_none_of_them(kafka_queue: BrokerQueue) -> None:
    await kafka_queue.create(1)
    source = kafka_queue.prefix + "orders"
    async with serving(ok) as service:
        assignment = kafka_queue.assignment(service.url)
        async with kafka_queue.courier(assignment) as courier:
            await send_in_transactions(kafka_queue, source, b"one", b"aborted")
            await until(lambda: service.bodies == [b"one"] and courier._subscription.lag == 0)
        (span,) = await kafka_queue.broker.window(source)
        await delete_records(kafka_queue, span.end)
        async with kafka_queue.courier(assignment) as courier:
            assert courier._subscription.deleted_messages == 0


async def send_in_transactions(queue: BrokerQueue, source: str, *bodies: bytes) -> None:
    """Send each message in a transaction of its own, and abort those with the body `aborted`."""
    assert queue.spec.kafka is not None
    servers = queue.spec.kafka.bootstrap_servers
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{source}.application")
    await producer.start()
    try:
        for body in bodies:
            await producer.begin_transaction()
            await producer.send_and_wait(source, body, partition=0)
            await (producer.abort_transaction() if body == b"aborted" else producer.commit_transaction())
    finally:
        await producer.stop()


class _Subscription:
    """A subscription that has counted messages."""

    parked_letters = 0
    blocked_by = None

    def __init__(self, deleted_messages: int) -> None:
        self.deleted_messages = deleted_messages

    async def report_status(self, status: WorkerStatus) -> None:
        raise AssertionError("this test reads the status itself")


async def test_a_process_keeps_its_count_over_subscriptions() -> None:
    queue, deleted = MemoryQueue(), DeletedMessages()
    async with serving() as service, queue.courier(courier_assignment(service.url)) as courier:
        for number, now in ((3, 1_000), (0, 2_000), (4, 3_000)):
            reporter = StatusReporter(
                courier, _Subscription(number), "pod", ("a", "b"), lambda now=now: now, 1, deleted
            )  # type: ignore[arg-type]
            reporter._count_deleted()
            reporter._count_deleted()
    status = reporter.status()
    assert (status.deleted, status.deleted_at) == (7, 3_000)
