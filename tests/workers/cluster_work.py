"""Work for a Kafka of three brokers during a fault: couriers deliver messages, a Replay sends letters back.

Couriers, service and replayer are processes of their own. Afterwards every message and letter is counted.
"""

import asyncio
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import MonitoredBox
from deadletter.wall_clock import now_ms
from deadletter.workers import exit_status
from deadletter.workers.courier.main import subscription_spec
from tests.bed.kafka_cluster import KafkaCluster
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets
from tests.workers import recording_service
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import until
from tests.workers.replay_scene import Scene, letter
from tests.workers.worker_processes import Pod, RecordingService

TIMEOUT_S = 600.0
BATCH = 5_000
PARTITIONS = 6
POLICY = {
    "maxAttempts": 20,
    "backoff": {"strategy": "Fixed", "initial": "10ms"},
    "circuitBreaker": {"openFor": "300ms"},
}


@dataclass(frozen=True)
class Size:
    """How much work there is and how fast it is done: slow enough for several faults before the end."""

    messages: int
    rounds: int
    pods: int
    concurrency: int
    delay_ms: int
    replays_per_second: int


SHORT = Size(2_000, rounds=1, pods=1, concurrency=8, delay_ms=50, replays_per_second=150)
FULL = Size(100_000, rounds=4, pods=2, concurrency=16, delay_ms=20, replays_per_second=1_000)


@dataclass(frozen=True)
class Account:
    """Counts of what happened to all messages and letters."""

    fault: str
    messages: int
    delivered: int
    letters: int
    lost: int
    duplicate_letters: int
    replayed: int
    lost_replays: int
    duplicate_replays: int
    seconds: float

    @classmethod
    def of(
        cls,
        fault: str,
        messages: int,
        delivered: set[int],
        letters: Counter[int],
        replayed: Counter[int],
        seconds: float,
    ) -> "Account":
        """Count; a second letter is a duplicate, and so is a letter of a message that the service accepts."""
        return cls(
            fault,
            messages,
            delivered=len(delivered),
            letters=letters.total(),
            lost=messages - len(delivered | letters.keys()),
            duplicate_letters=(letters - bad_ones(messages)).total(),
            replayed=replayed.total(),
            lost_replays=messages - len(replayed),
            duplicate_replays=replayed.total() - len(replayed),
            seconds=round(seconds, 1),
        )

    @property
    def wrong(self) -> int:
        """Number of lost and duplicate messages and letters."""
        return self.lost + self.duplicate_letters + self.lost_replays + self.duplicate_replays


def bad_ones(messages: int) -> Counter[int]:
    """Return the messages that the service refuses for good, each of which becomes one letter."""
    return Counter(number for number in range(messages) if recording_service.is_bad(number))


class Work:
    """Couriers and a replayer that work on one cluster."""

    def __init__(self, cluster: KafkaCluster, folder: Path, size: Size, more_pods: int = 0) -> None:
        self.cluster, self.folder, self.size = cluster, folder, size
        self.prefix = f"faults-{uuid.uuid4().hex[:8]}."
        self.spec = kafka_at(cluster.bootstrap)
        self.scene = Scene(None, f"{self.prefix}replayed", self.spec.to_wire())  # type: ignore[arg-type]
        self.shop = RecordingService(folder / "shop", size.delay_ms)
        self.assignment = self._courier_assignment()
        self.pods = [self._pod(f"pod-{n}", self.assignment, "courier") for n in range(size.pods + more_pods)]
        rate = {"perSecond": size.replays_per_second, "maxInFlight": 250}
        self.replay = self._pod("replay", self.scene.assignment(allow=LOOPBACK, rate=rate), "replay")
        self._began = 0.0

    def _courier_assignment(self) -> CourierAssignment:
        queue = BrokerQueue(None, self.spec, self.prefix)  # type: ignore[arg-type]
        delivery = {"inlineLimit": "5s", "concurrency": self.size.concurrency}
        return queue.assignment(self.shop.url, policy=POLICY, delivery=delivery, allow=LOOPBACK)

    def _pod(self, name: str, assignment, role: str) -> Pod:
        folder = self.folder / name
        return Pod(folder, assignment, "tests.workers.holdpoints", str(folder), role, name=name)

    @property
    def topics(self) -> list[str]:
        """Every topic that the work writes to or reads from."""
        boxes = [self.assignment.boxes, self.scene.boxes]
        return [name for one in boxes for name in (one.source, one.dead, one.retry, one.ledger) if name]

    @property
    def programs(self) -> list[Pod]:
        """The pods of couriers and replayer."""
        return [*self.pods, self.replay]

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        """Open a new connection: the previous one may have failed with its broker."""
        async with open_broker(self.spec, no_secrets, LOOPBACK) as broker:
            self.scene.broker = broker
            yield broker

    async def prepare(self) -> None:
        """Create the boxes and fill them."""
        async with self.broker() as broker:
            queue = BrokerQueue(broker, self.spec, self.prefix)
            await queue.create(PARTITIONS)
            await self.scene.build()
            for first in range(0, self.size.messages, BATCH):
                numbers = range(first, min(first + BATCH, self.size.messages))
                await queue.send(*(message(f"{number}", f"k{number % 97}") for number in numbers))
                await self.scene.bury(*(letter(number, self.scene.name) for number in numbers))

    async def start(self) -> None:
        """Start service and couriers; start the replayer when messages arrive, so that it outlasts the faults."""
        await self.shop.start()
        for pod in self.pods:
            await pod.start()
        self._began = time.monotonic()
        await until(lambda: self.shop.deliveries.refresh() > 0, TIMEOUT_S)
        await self.replay.start()
        await self.until_replayed(1)

    async def end(self) -> None:
        """Kill all processes."""
        for pod in (self.shop, *self.programs):
            if pod.process is not None:
                await pod.end(signal.SIGKILL)

    async def rounds(self) -> AsyncIterator[int]:
        """Yield the number of each round when enough work is done for it to begin."""
        for turn in range(self.size.rounds):
            wanted = self.size.messages * (turn + 1) // (self.size.rounds + 3)
            await until(lambda wanted=wanted: self.shop.deliveries.refresh() >= wanted, TIMEOUT_S)
            yield turn

    async def replayed(self) -> int:
        """Return roughly how many letters have arrived; transaction markers are counted too."""
        return await retry_while_down(self._count_replayed)

    async def _count_replayed(self) -> int:
        async with self.broker() as broker:
            return sum(span.end - span.start for span in await broker.window(self.scene.name))

    async def until_replayed(self, count: int) -> None:
        """Wait until this many letters have arrived or the Replay has ended."""
        process = self.replay.process
        async with asyncio.timeout(TIMEOUT_S):
            while process is not None and process.returncode is None and await self.replayed() < count:
                await asyncio.sleep(0.2)

    async def members(self) -> int:
        """Return the number of couriers in the group."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        try:
            (response,) = await admin.describe_consumer_groups([self.assignment.group])
            return len(response.groups[0][5])
        finally:
            await admin.close()

    async def account(self, fault: str) -> Account:
        """Wait until all work is done, then count and check it."""
        bad = bad_ones(self.size.messages).total()
        await self._finish_deliveries(bad)
        await self._finish_replay()
        seconds = time.monotonic() - self._began
        async with self.broker() as broker:
            letters, numbers = await self._letters(broker), await self.scene.numbers()
            delivered = self.shop.deliveries.delivered
            counted = Account.of(fault, self.size.messages, delivered, letters, Counter(numbers), seconds)
            self.shop.deliveries.check_order()
            assert numbers == sorted(numbers), "replayed out of order"
            await self._check_counts(broker, bad)
        return counted

    async def _finish_deliveries(self, bad: int) -> None:
        good = self.size.messages - bad
        try:
            await until(lambda: self.shop.deliveries.refresh() >= good, TIMEOUT_S)
        except TimeoutError:
            raise AssertionError(f"{self.shop.deliveries.refresh()} of {good} delivered; {self.pods[0].log}") from None
        async with asyncio.timeout(TIMEOUT_S):
            while (await retry_while_down(self._count_letters)) < bad:
                await asyncio.sleep(0.2)
        for pod in self.pods:
            assert await pod.end(signal.SIGTERM) == 0, pod.log

    async def _count_letters(self) -> int:
        async with self.broker() as broker:
            return (await self._letters(broker)).total()

    async def _letters(self, broker: Broker) -> Counter[int]:
        found = await BrokerQueue(broker, self.spec, self.prefix).buried()
        return Counter(int(one.message.value or b"") for one in found)

    async def _finish_replay(self) -> None:
        code = await self.replay.ended(TIMEOUT_S)
        while code in (exit_status.TRY_AGAIN, exit_status.FENCED):  # the Job starts another pod
            await self.replay.start()
            code = await self.replay.ended(TIMEOUT_S)
        assert code == exit_status.FINISHED, self.replay.log

    async def _check_counts(self, broker: Broker, bad: int) -> None:
        """Check that progress, depth and committed offsets agree with the boxes."""
        (progress,) = await self.scene.all_progress()
        count = self.size.messages
        assert (progress.scanned, progress.matched, progress.replayed) == (count, count, count)
        boxes, replayed = self.assignment.boxes, self.scene.boxes
        depths = {boxes.dead: bad, replayed.dead: 0}
        monitored = [MonitoredBox(one.dead, one.ledger, one.retry or "") for one in (boxes, replayed)]
        monitor = broker.monitor()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    found = await monitor.sweep(monitored, now_ms())
                    if all(not isinstance(one, BrokerError) and one.caught_up for one in found.values()):
                        break
                    await asyncio.sleep(0.2)
        finally:
            await monitor.close()
        assert {name: one.depth for name, one in found.items() if not isinstance(one, BrokerError)} == depths
        async with broker.subscribe(subscription_spec(self.assignment, "after")) as subscription:
            assert await subscription.claim(1) == []


async def retry_while_down(request: Callable[[], Awaitable[int]]) -> int:
    """Repeat the request while brokers are down."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await request()
            except BrokerError as error:
                if not error.is_transient:
                    raise
            await asyncio.sleep(0.2)
