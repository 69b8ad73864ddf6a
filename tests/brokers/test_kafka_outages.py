"""A Kafka that stops responding with its sockets open, or restarts together with its coordinators."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka.producer.sender import Sender

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.kafka import ledger as ledgers
from deadletter.brokers.types import CommitBatch, Publication, StoredMessage
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import decode_worker_status
from deadletter.core.letters import Message
from deadletter.core.replay_progress import SettledAs
from tests.bed import beds, processes
from tests.bed import kafka as kafka_bed
from tests.brokers import writer_processes
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import (
    Boxes,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)
from tests.workers.http_service import until

pytestmark = pytest.mark.server

PART = beds.Part("failing-kafka", 2, kafka_bed.start)


class FailingKafka:
    """A Kafka for this file alone that tests may suspend, stop and kill."""

    def __init__(self, bed: beds.Bed) -> None:
        self._bed, self._part = bed, bed.ensure_part(PART)

    @property
    def address(self) -> str:
        return f"{self._part['address']}:{self._part['ports'][0]}"

    def send(self, number: signal.Signals) -> None:
        for process in processes.find_of_bed(self._bed.directory, PART.name):
            os.kill(process.pid, number)

    def restart(self, hard: bool) -> None:
        (self.kill if hard else self.stop)()
        self.start()

    def kill(self) -> None:
        processes.kill(processes.find_of_bed(self._bed.directory, PART.name))

    def start(self) -> None:
        kafka_bed.start(self._bed.directory, PART.name, self._part["address"], *self._part["ports"])

    def stop(self) -> None:
        self.send(signal.SIGCONT)
        processes.stop(processes.find_of_bed(self._bed.directory, PART.name))


@pytest.fixture(scope="module")
def failing_kafka(bed: beds.Bed) -> Iterator[FailingKafka]:
    started = FailingKafka(bed)
    yield started
    started.stop()


async def replay_until_done(
    broker: Broker,
    boxes: Boxes,
    letters: list[StoredMessage],
    publish: Callable[[list[StoredMessage]], list[Publication]],
) -> None:
    """Replay what is open, again and again until the broker is available, as a replay does."""
    async with asyncio.timeout(writer_processes.RECOVERY_TIMEOUT_S):
        while True:
            try:
                async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
                    left = [one for one in letters if writer.is_open(one.place.offset)]
                    settled = {SettledAs.Replayed: [one.place.offset for one in left]}
                    return await writer.commit(CommitBatch(progress_of(letters), publish(left), settled))
            except BrokerUnreachable:
                await asyncio.sleep(0.2)


async def test_a_suspended_broker_loses_and_duplicates_nothing(failing_kafka: FailingKafka) -> None:
    async with open_broker(kafka_at(failing_kafka.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("suspended"))
        await publish_all(broker, boxes.dead, numbered_messages(4))
        letters = await read_all(broker, boxes.dead)
        offsets = [one.place.offset for one in letters]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            await writer.commit(
                CommitBatch(
                    progress_of(letters), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]}
                )
            )
            failing_kafka.send(signal.SIGSTOP)
            try:
                rest = CommitBatch(
                    progress_of(letters), publications_to(boxes.target, letters[1:]), {SettledAs.Replayed: offsets[1:]}
                )
                with pytest.raises(BrokerUnreachable):
                    await writer.commit(rest)
            finally:
                failing_kafka.send(signal.SIGCONT)
        await replay_until_done(broker, boxes, letters, lambda left: publications_to(boxes.target, left))
        assert await values(broker, boxes.target) == [m.value for m in numbered_messages(4)]


async def test_a_commit_larger_than_all_buffers_fails_when_the_broker_is_suspended(
    failing_kafka: FailingKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More data is under way than all buffers hold, so closing the connection gracefully would never end."""
    produce = Sender._send_produce_req

    async def suspend_and_send(self: Any, *arguments: Any) -> None:
        failing_kafka.send(signal.SIGSTOP)
        await produce(self, *arguments)

    async with open_broker(kafka_at(failing_kafka.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("suspended"), 12)
        await publish_all(broker, boxes.dead, [Message(b"k", bytes([n]) * 900_000) for n in range(12)])
        letters = await read_all(broker, boxes.dead)
        spread = [Publication(boxes.target, one.message, one.place, n) for n, one in enumerate(letters)]
        step = CommitBatch(progress_of(letters), spread, {SettledAs.Replayed: [one.place.offset for one in letters]})
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            monkeypatch.setattr(Sender, "_send_produce_req", suspend_and_send)
            try:
                async with asyncio.timeout(writer_processes.RECOVERY_TIMEOUT_S):
                    with pytest.raises(BrokerUnreachable):
                        await writer.commit(step)
            finally:
                monkeypatch.undo()
                failing_kafka.send(signal.SIGCONT)
        await replay_until_done(broker, boxes, letters, lambda _: spread)
        assert sorted(found or b"" for found in await values(broker, boxes.target)) == sorted(
            one.message.value or b"" for one in letters
        )


async def test_a_subscription_is_closed_while_its_broker_is_down(
    failing_kafka: FailingKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed fetches wait for their next attempt; ending them must not cancel the task that closes the subscription."""
    try:
        async with open_broker(kafka_at(failing_kafka.address), no_secrets, LOOPBACK) as broker:
            boxes = await make_boxes(broker, fresh_name("down"), 3)
            async with broker.subscribe(boxes.subscription()) as subscription:
                assert await subscription.claim(1) == []
                failing_kafka.kill()
                await until(lambda: "Failed fetch messages" in caplog.text)
    finally:
        failing_kafka.start()


async def test_worker_statuses_are_written_again_after_an_outage(failing_kafka: FailingKafka) -> None:
    """The producer that they share is replaced when it fails: the driver would repeat its send without limit."""
    async with open_broker(kafka_at(failing_kafka.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("status"))

        async def report(at: int) -> None:
            await broker.report_status(boxes.dead, boxes.ledger, "pod-0", WorkerStatus("pod-0", at=at))

        await report(1)
        failing_kafka.send(signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnreachable):
                await report(2)
        finally:
            failing_kafka.send(signal.SIGCONT)
        await report(3)
        await asyncio.to_thread(failing_kafka.restart, True)
        async with asyncio.timeout(writer_processes.RECOVERY_TIMEOUT_S):
            while not await is_done(report(4)):
                await asyncio.sleep(0.2)
        kafka = broker._kafka  # type: ignore[attr-defined]
        entries = await ledgers.read_ledger(kafka, boxes.ledger, lambda key: key.kind == "courier")
        assert [decode_worker_status(key, value, WorkerStatus).at for key, (_, value) in entries.items()] == [4]


async def is_done(call: Awaitable[None]) -> bool:
    """Return False if the broker is not available."""
    try:
        await call
    except BrokerUnreachable:
        return False
    return True


@pytest.mark.parametrize("hard", [True, False])
async def test_a_restart_of_the_coordinator_loses_and_duplicates_nothing(
    failing_kafka: FailingKafka, hard: bool
) -> None:
    """The broker ends in the middle of a replay, by SIGKILL or gracefully."""
    await replay_with_restarts(failing_kafka, 10_000, 1, hard)


@pytest.mark.kill
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("hard", [True, False])
async def test_ten_restarts_lose_and_duplicate_nothing(failing_kafka: FailingKafka, hard: bool) -> None:
    await replay_with_restarts(failing_kafka, 100_000, 10, hard)


async def replay_with_restarts(failing_kafka: FailingKafka, letters: int, restarts: int, hard: bool) -> None:
    async with open_broker(kafka_at(failing_kafka.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("restart"))
        await writer_processes.publish_letters(broker, boxes, letters)
        writer = await writer_processes.start("kafka", failing_kafka.address, boxes, 250)
        try:
            assert await writer.wait_for_commits(5)
            for _ in range(restarts):
                await asyncio.to_thread(failing_kafka.restart, hard)
                assert await writer.wait_for_recovery(), await writer.end()
            code, errors = await writer.end()
        finally:
            writer.send(signal.SIGKILL)
        assert code == 0, errors
        await writer_processes.check_moved_exactly_once(broker, boxes, letters)
