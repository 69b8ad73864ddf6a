"""A Kafka that falls silent with its sockets open, or goes away with its coordinators and comes back."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.producer.sender import Sender

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.types import CommitBatch, Publication, StoredMessage
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

PART = beds.Part("frail-kafka", 2, kafka_bed.start)


class Frail:
    """A Kafka of this file's own, which may be stopped and killed."""

    def __init__(self, bed: beds.Bed) -> None:
        self._bed, self._said = bed, bed.ensure_part(PART)

    @property
    def address(self) -> str:
        return f"{self._said['address']}:{self._said['ports'][0]}"

    def send(self, sign: signal.Signals) -> None:
        for process in processes.find_of_bed(self._bed.directory, PART.name):
            os.kill(process.pid, sign)

    def bounce(self, hard: bool) -> None:
        (self.kill if hard else self.end)()
        self.start()

    def kill(self) -> None:
        processes.kill(processes.find_of_bed(self._bed.directory, PART.name))

    def start(self) -> None:
        kafka_bed.start(self._bed.directory, PART.name, self._said["address"], *self._said["ports"])

    def end(self) -> None:
        self.send(signal.SIGCONT)
        processes.stop(processes.find_of_bed(self._bed.directory, PART.name))


@pytest.fixture(scope="module")
def frail(bed: beds.Bed) -> Iterator[Frail]:
    made = Frail(bed)
    yield made
    made.end()


async def finish(
    broker: Broker,
    boxes: Boxes,
    letters: list[StoredMessage],
    publish: Callable[[list[StoredMessage]], list[Publication]],
) -> None:
    """As a replayer does: again from the ledger until the broker is itself again."""
    async with asyncio.timeout(writer_processes.RECOVERY_TIMEOUT_S):
        while True:
            try:
                async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
                    left = [one for one in letters if writer.is_open(one.place.offset)]
                    settled = {SettledAs.Replayed: [one.place.offset for one in left]}
                    return await writer.commit(CommitBatch(progress_of(letters), publish(left), settled))
            except BrokerUnreachable:
                await asyncio.sleep(0.2)


async def test_a_broker_that_falls_silent_doubles_and_loses_nothing(frail: Frail) -> None:
    async with open_broker(kafka_at(frail.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("silent"))
        await publish_all(broker, boxes.dead, numbered_messages(4))
        letters = await read_all(broker, boxes.dead)
        offsets = [one.place.offset for one in letters]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            await writer.commit(
                CommitBatch(
                    progress_of(letters), publications_to(boxes.target, letters[:1]), {SettledAs.Replayed: offsets[:1]}
                )
            )
            frail.send(signal.SIGSTOP)
            try:
                rest = CommitBatch(
                    progress_of(letters), publications_to(boxes.target, letters[1:]), {SettledAs.Replayed: offsets[1:]}
                )
                with pytest.raises(BrokerUnreachable):
                    await writer.commit(rest)
            finally:
                frail.send(signal.SIGCONT)
        await finish(broker, boxes, letters, lambda left: publications_to(boxes.target, left))
        assert await values(broker, boxes.target) == [m.value for m in numbered_messages(4)]


async def test_a_broker_that_falls_silent_under_a_large_step_is_given_up(
    frail: Frail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is on its way than all buffers take: closing such a connection politely would never end."""
    produce = Sender._send_produce_req

    async def silenced(self: Any, *words: Any) -> None:
        frail.send(signal.SIGSTOP)
        await produce(self, *words)

    async with open_broker(kafka_at(frail.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("silent"), 12)
        await publish_all(broker, boxes.dead, [Message(b"k", bytes([n]) * 900_000) for n in range(12)])
        letters = await read_all(broker, boxes.dead)
        spread = [Publication(boxes.target, one.message, one.place, n) for n, one in enumerate(letters)]
        step = CommitBatch(progress_of(letters), spread, {SettledAs.Replayed: [one.place.offset for one in letters]})
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            monkeypatch.setattr(Sender, "_send_produce_req", silenced)
            try:
                async with asyncio.timeout(writer_processes.RECOVERY_TIMEOUT_S):
                    with pytest.raises(BrokerUnreachable):
                        await writer.commit(step)
            finally:
                monkeypatch.undo()
                frail.send(signal.SIGCONT)
        await finish(broker, boxes, letters, lambda _: spread)
        assert sorted(found or b"" for found in await values(broker, boxes.target)) == sorted(
            one.message.value or b"" for one in letters
        )


async def test_a_desk_is_closed_while_its_broker_is_away(frail: Frail, caplog: pytest.LogCaptureFixture) -> None:
    """Fetches that failed wait for their next try; ending them must not cancel whoever closes the desk."""
    try:
        async with open_broker(kafka_at(frail.address), no_secrets, LOOPBACK) as broker:
            boxes = await make_boxes(broker, fresh_name("away"), 3)
            async with broker.subscribe(boxes.subscription()) as subscription:
                assert await subscription.claim(1) == []
                frail.kill()
                await until(lambda: "Failed fetch messages" in caplog.text)
    finally:
        frail.start()


@pytest.mark.parametrize("hard", [True, False])
async def test_a_lost_coordinator_doubles_and_loses_nothing(frail: Frail, hard: bool) -> None:
    """It ends in the middle of a replay, by SIGKILL or politely."""
    await bounced(frail, 10_000, 1, hard)


@pytest.mark.kill
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("hard", [True, False])
async def test_ten_bounces_double_and_lose_nothing(frail: Frail, hard: bool) -> None:
    await bounced(frail, 100_000, 10, hard)


async def bounced(frail: Frail, letters: int, bounces: int, hard: bool) -> None:
    async with open_broker(kafka_at(frail.address), no_secrets, LOOPBACK) as broker:
        boxes = await make_boxes(broker, fresh_name("bounce"))
        await writer_processes.publish_letters(broker, boxes, letters)
        writer = await writer_processes.start("kafka", frail.address, boxes, 250)
        try:
            assert await writer.wait_for_commits(5)
            for _ in range(bounces):
                await asyncio.to_thread(frail.bounce, hard)
                assert await writer.wait_for_recovery(), await writer.end()
            code, errors = await writer.end()
        finally:
            writer.send(signal.SIGKILL)
        assert code == 0, errors
        await writer_processes.check_moved_exactly_once(broker, boxes, letters)
