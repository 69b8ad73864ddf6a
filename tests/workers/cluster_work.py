"""Work for a Kafka of three brokers during a fault: couriers deliver messages, a Replay sends letters back.

Couriers, service and replayer are processes of their own. Afterwards every message and every letter is accounted for.
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

from deadletter.api.assignments import CourierAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import MonitoredBox
from deadletter.clock import now_ms
from deadletter.workers import exit_status
from deadletter.workers.courier.main import subscription_spec
from tests.bed.kafka_cluster import KafkaCluster
from tests.brokers.opening import LOOPBACK, kafka_at, no_secrets
from tests.workers import shop
from tests.workers.couriers import message
from tests.workers.pods import Pod, Shop
from tests.workers.replay_scene import Scene, letter
from tests.workers.services import until
from tests.workers.wires import Wire

PATIENCE = 600.0
BATCH = 5_000
PARTITIONS = 6
POLICY = {
    "maxAttempts": 20,
    "backoff": {"strategy": "Fixed", "initial": "10ms"},
    "circuitBreaker": {"openFor": "300ms"},
}


@dataclass(frozen=True)
class Size:
    """How much work there is and how fast it goes: a fault should happen several times before it is done."""

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
    """What became of all messages and letters."""

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
        """Count; a letter of a message that the service takes is one too many, as is a second one."""
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
        """Everything that is lost or there twice."""
        return self.lost + self.duplicate_letters + self.lost_replays + self.duplicate_replays


def bad_ones(messages: int) -> Counter[int]:
    """Return the messages that the service refuses for good, each of which becomes one letter."""
    return Counter(number for number in range(messages) if shop.is_bad(number))


class Work:
    """Couriers and a replayer at work on one cluster."""

    def __init__(self, cluster: KafkaCluster, folder: Path, size: Size, more_pods: int = 0) -> None:
        self.cluster, self.folder, self.size = cluster, folder, size
        self.prefix = f"faults-{uuid.uuid4().hex[:8]}."
        self.spec = kafka_at(cluster.bootstrap)
        self.scene = Scene(None, f"{self.prefix}replayed", self.spec.to_wire())  # type: ignore[arg-type]
        self.shop = Shop(folder / "shop", size.delay_ms)
        self.told = self._courier_assignment()
        self.pods = [self._pod(f"pod-{n}", self.told, "courier") for n in range(size.pods + more_pods)]
        rate = {"perSecond": size.replays_per_second, "maxInFlight": 250}
        self.replay = self._pod("replay", self.scene.assignment(allow=LOOPBACK, rate=rate), "replay")
        self._began = 0.0

    def _courier_assignment(self) -> CourierAssignment:
        wire = Wire(None, self.spec, self.prefix)  # type: ignore[arg-type]
        delivery = {"inlineLimit": "5s", "concurrency": self.size.concurrency}
        return wire.assignment(self.shop.url, policy=POLICY, delivery=delivery, allow=LOOPBACK)

    def _pod(self, name: str, told, role: str) -> Pod:
        folder = self.folder / name
        return Pod(folder, told, "tests.workers.holdpoints", str(folder), role, name=name)

    @property
    def topics(self) -> list[str]:
        """Every topic that the work writes to or reads from."""
        boxes = [self.told.boxes, self.scene.boxes]
        return [name for one in boxes for name in (one.source, one.dead, one.retry, one.ledger) if name]

    @property
    def programs(self) -> list[Pod]:
        """Couriers and replayer."""
        return [*self.pods, self.replay]

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        """A fresh connection: the last one may have died with its broker."""
        async with open_broker(self.spec, no_secrets, LOOPBACK) as broker:
            self.scene.broker = broker
            yield broker

    async def prepare(self) -> None:
        """Make the boxes and fill them."""
        async with self.broker() as broker:
            wire = Wire(broker, self.spec, self.prefix)
            await wire.make(PARTITIONS)
            await self.scene.build()
            for first in range(0, self.size.messages, BATCH):
                numbers = range(first, min(first + BATCH, self.size.messages))
                await wire.send(*(message(f"{number}", f"k{number % 97}") for number in numbers))
                await self.scene.bury(*(letter(number, self.scene.name) for number in numbers))

    async def start(self) -> None:
        """Start service and couriers, and the replayer when messages arrive: it must not end before the faults."""
        await self.shop.start()
        for pod in self.pods:
            await pod.start()
        self._began = time.monotonic()
        await until(lambda: self.shop.book.look() > 0, PATIENCE)
        await self.replay.start()
        await self.until_replayed(1)

    async def end(self) -> None:
        """End all processes at once."""
        for pod in (self.shop, *self.programs):
            if pod.process is not None:
                await pod.end(signal.SIGKILL)

    async def rounds(self) -> AsyncIterator[int]:
        """Yield the number of each round when so much of the work is done that it is its turn."""
        for turn in range(self.size.rounds):
            wanted = self.size.messages * (turn + 1) // (self.size.rounds + 3)
            await until(lambda wanted=wanted: self.shop.book.look() >= wanted, PATIENCE)
            yield turn

    async def replayed(self) -> int:
        """Return about how many letters have arrived; markers of transactions are counted too."""
        return await patiently(self._count_replayed)

    async def _count_replayed(self) -> int:
        async with self.broker() as broker:
            return sum(span.end - span.start for span in await broker.window(self.scene.name))

    async def until_replayed(self, count: int) -> None:
        """Wait until at least so many letters have arrived, or the Replay has ended."""
        process = self.replay.process
        async with asyncio.timeout(PATIENCE):
            while process is not None and process.returncode is None and await self.replayed() < count:
                await asyncio.sleep(0.2)

    async def members(self) -> int:
        """Return how many couriers the group has."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        try:
            (answer,) = await admin.describe_consumer_groups([self.told.group])
            return len(answer.groups[0][5])
        finally:
            await admin.close()

    # Accounting.

    async def account(self, fault: str) -> Account:
        """Wait until all is done and count it."""
        bad = bad_ones(self.size.messages).total()
        await self._finish_deliveries(bad)
        await self._finish_replay()
        seconds = time.monotonic() - self._began
        async with self.broker() as broker:
            letters, numbers = await self._letters(broker), await self.scene.numbers()
            delivered = self.shop.book.delivered
            counted = Account.of(fault, self.size.messages, delivered, letters, Counter(numbers), seconds)
            # With so few requests at once, some that fail are parked at once and let others pass.
            self.shop.book.check_order(lambda number: shop.is_put_off(number) or shop.is_flaky(number))
            assert numbers == sorted(numbers), "replayed out of order"
            await self._check_counts(broker, bad)
        return counted

    async def _finish_deliveries(self, bad: int) -> None:
        good = self.size.messages - bad
        try:
            await until(lambda: self.shop.book.look() >= good, PATIENCE)
        except TimeoutError:
            raise AssertionError(f"{self.shop.book.look()} of {good} delivered; {self.pods[0].log}") from None
        async with asyncio.timeout(PATIENCE):
            while (await patiently(self._count_letters)) < bad:
                await asyncio.sleep(0.2)
        for pod in self.pods:
            assert await pod.end(signal.SIGTERM) == 0, pod.log

    async def _count_letters(self) -> int:
        async with self.broker() as broker:
            return (await self._letters(broker)).total()

    async def _letters(self, broker: Broker) -> Counter[int]:
        found = await Wire(broker, self.spec, self.prefix).buried()
        return Counter(int(one.message.value or b"") for one in found)

    async def _finish_replay(self) -> None:
        code = await self.replay.ended(PATIENCE)
        while code in (exit_status.TRY_AGAIN, exit_status.FENCED):  # as the Job does
            await self.replay.start()
            code = await self.replay.ended(PATIENCE)
        assert code == exit_status.FINISHED, self.replay.log

    async def _check_counts(self, broker: Broker, bad: int) -> None:
        """Tally, depth and committed offsets say the same as the boxes."""
        (progress,) = await self.scene.all_progress()
        count = self.size.messages
        assert (progress.scanned, progress.matched, progress.replayed) == (count, count, count)
        boxes, replayed = self.told.boxes, self.scene.boxes
        depths = {boxes.dead: bad, replayed.dead: 0}
        watched = [MonitoredBox(one.dead, one.ledger, one.retry or "") for one in (boxes, replayed)]
        registers = broker.monitor()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = await registers.sweep(watched, now_ms())
                    if all(not isinstance(one, BrokerError) and one.caught_up for one in found.values()):
                        break
                    await asyncio.sleep(0.2)
        finally:
            await registers.close()
        assert {name: one.depth for name, one in found.items() if not isinstance(one, BrokerError)} == depths
        async with broker.subscribe(subscription_spec(self.told, "after")) as desk:
            assert await desk.claim(1) == []


async def patiently(ask: Callable[[], Awaitable[int]]) -> int:
    """Ask again while brokers are away."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await ask()
            except BrokerError as error:
                if not error.is_transient:
                    raise
            await asyncio.sleep(0.2)
