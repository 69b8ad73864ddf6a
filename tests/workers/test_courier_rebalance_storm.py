"""Couriers join and leave while messages wait for a retry longer than the session timeout of the group."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from deadletter.brokers.kafka.broker import KafkaBroker
from deadletter.brokers.kafka.subscription.assignment import PartitionAssignment
from deadletter.brokers.kafka.subscription.offset_metadata import decode
from deadletter.workers.process import cancel_and_wait
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until

pytestmark = pytest.mark.parametrize("queue", ["kafka"], indirect=True)
Where = tuple[int, int]


@dataclass
class FlakyService:
    """A service that refuses every third message at its first attempt and remembers what it accepted."""

    taken: set[Where] = field(default_factory=set)
    attempts: Counter[Where] = field(default_factory=Counter)

    def __call__(self, one: Received) -> web.Response:
        where = int(one.headers["Dlq-Partition"]), int(one.headers["Dlq-Offset"])
        self.attempts[where] += 1
        if where[1] % 3 == 0 and one.headers["Dlq-Attempt"] == "1":
            return web.Response(status=503)
        self.taken.add(where)
        return web.Response()


@dataclass
class Auditor:
    """Reads the committed offsets repeatedly and finds messages committed before the service accepted them."""

    queue: BrokerQueue
    group: str
    till: FlakyService
    existing: set[Where] = field(default_factory=set)
    looks: int = 0
    wrong: set[Where] = field(default_factory=set)

    async def finished(self) -> set[Where]:
        """Return the messages that would not be delivered again after a restart."""
        assert isinstance(self.queue.broker, KafkaBroker)
        admin = await self.queue.broker._kafka.admin_client()
        topic = f"{self.queue.prefix}orders"
        tps = [TopicPartition(topic, partition) for partition in {partition for partition, _ in self.existing}]
        found = await admin.list_consumer_group_offsets(self.group, partitions=tps)
        states = {tp.partition: decode(one.offset, one.metadata or "") for tp, one in found.items() if one.offset >= 0}
        return {
            (partition, offset)
            for partition, offset in self.existing
            if partition in states and offset <= states[partition][0] and offset not in states[partition][1]
        }

    async def watch(self) -> None:
        """Check until cancelled."""
        while True:
            with suppress(KafkaError):  # a broker that has just started has no coordinator yet
                self.wrong |= await self.finished() - self.till.taken
                self.looks += 1
            await asyncio.sleep(0.05)


async def storm(queue: BrokerQueue, pods: int, turns: int, partitions: int, backoff: int) -> None:
    """Run `pods` couriers that join and leave, then one that finishes. Few messages wait, so none is parked."""
    await queue.create(partitions)
    await queue.send(*(message(f"m{n}", f"k{n}") for n in range(30 * pods)))
    till = FlakyService()
    policy = {**QUICK, "maxAttempts": 50, "backoff": {"strategy": "Fixed", "initial": f"{backoff}s"}}
    async with serving(till) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "1h", "concurrency": 256})
        auditor = Auditor(queue, assignment.group, till)
        auditor.existing = {(one.place.partition, one.place.offset) for one in await queue.buried("orders")}
        watching = asyncio.ensure_future(auditor.watch())

        async def join_and_leave(pod: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(random.random() * backoff / 2)
                async with queue.courier(assignment, f"pod-{pod}"):
                    await asyncio.sleep(random.random() * backoff / 2)

        await asyncio.gather(*(join_and_leave(pod) for pod in range(pods)))
        await queue.send(*(message(f"late{n}", f"k{n}") for n in range(60)))
        auditor.existing = {(one.place.partition, one.place.offset) for one in await queue.buried("orders")}
        async with queue.courier(assignment, "pod-last"):
            await until(lambda: till.taken == auditor.existing or bool(auditor.wrong), 240)
        left = auditor.existing - await auditor.finished()
        await cancel_and_wait(watching)
    assert not auditor.wrong, "committed before the service accepted it"
    assert not left, "taken and not committed when the last one left"
    assert auditor.looks > 10
    assert not await queue.buried()
    print(f"{len(auditor.existing)} messages, {sum(till.attempts.values())} requests, {auditor.looks} looks")


async def wait_through_backoff(queue: BrokerQueue, backoff: int) -> None:
    """Run one courier whose messages all wait, and check that it stays in its group."""
    await queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": f"{backoff}s"}}
    answer = lambda one: web.Response(status=503 if one.headers["Dlq-Attempt"] == "1" else 200)  # noqa: E731
    revoked, let_go = 0, PartitionAssignment.on_partitions_revoked

    async def counted(self: PartitionAssignment, parts: set[TopicPartition]) -> None:
        nonlocal revoked
        revoked += bool(parts)
        await let_go(self, parts)

    with patch.object(PartitionAssignment, "on_partitions_revoked", counted):
        async with serving(answer) as service:
            assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "1h"})
            async with queue.courier(assignment):
                await until(lambda: len(service.received) >= 20)
                assert revoked == 0
    assert Counter(one.headers["Dlq-Attempt"] for one in service.received) == {"1": 10, "2": 10}


async def test_a_courier_stays_in_its_group_through_a_backoff_longer_than_a_session(queue: BrokerQueue):
    await wait_through_backoff(queue, 12)  # a session lasts 10 s


async def test_no_offset_is_committed_beyond_what_was_taken_while_couriers_join_and_leave(queue: BrokerQueue):
    await storm(queue, pods=3, turns=2, partitions=4, backoff=4)


@pytest.mark.kill
async def test_a_courier_stays_in_its_group_through_a_backoff_of_half_a_minute(queue: BrokerQueue):
    await wait_through_backoff(queue, 30)


@pytest.mark.kill
@pytest.mark.timeout(1200)
async def test_ten_couriers_join_and_leave_during_backoffs_of_half_a_minute(queue: BrokerQueue):
    await storm(queue, pods=10, turns=4, partitions=12, backoff=30)
