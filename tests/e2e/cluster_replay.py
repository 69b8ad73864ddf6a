"""A Replay of many letters on Kafka in the cluster: create it, disturb it, check every letter."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.core.box_types import BoxSpec
from tests.bed import node
from tests.demo.stage import Stage
from tests.workers.replay_scene import Scene, letter, number_of

ANYWHERE = ("0.0.0.0/0", "::/0")
PARTITIONS = 4
TIMEOUT_S = 300
API = "deadletter.dev/v1alpha1"


@dataclass
class ClusterReplay:
    """An adopted dead topic with `PARTITIONS` partitions, its origin topic, its queue and Replays in the cluster."""

    stage: Stage
    address: str
    name: str = field(default_factory=lambda: f"load-{uuid.uuid4().hex[:8]}")

    @asynccontextmanager
    async def open_scene(self) -> AsyncIterator[Scene]:
        """Yield a scene with an open broker."""
        scene = Scene(None, self.name, {"kafka": {"bootstrapServers": [self.address]}}, PARTITIONS)
        async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
            scene.broker = broker
            yield scene

    async def fill(self, share: int, value: bytes | None = None) -> None:
        """Bury `share` letters in each partition; their origin is the partition of the same number."""
        async with self.open_scene() as scene:
            await self._create_topics(scene.broker)
            for first in range(0, share, 1_000):
                for partition in range(PARTITIONS):
                    numbers = range(first, min(first + 1_000, share))
                    batch = [letter(number, self.name, partition=partition) for number in numbers]
                    for message in batch:
                        message.value = value or message.value
                    await scene.bury(*batch, partition=partition)

    async def _create_topics(self, broker: Broker) -> None:
        for name in (self.name, f"{self.name}.dlq"):
            await broker.ensure(BoxSpec(name, partitions=PARTITIONS, retention_ms=-1))

    def create_queue(self) -> None:
        """Create the queue in the cluster and wait until it is Ready."""
        broker = {"kafka": {"bootstrapServers": [self.address]}}
        queue = {"brokerRef": {"name": self.name}, "dead": {"name": f"{self.name}.dlq", "adopt": True}}
        self._apply("BrokerConnection", self.name, broker)
        self._apply("DeadLetterQueue", self.name, queue)
        ready = lambda: self.stage.condition(f"dlq/{self.name}", "Ready").get("status") == "True"  # noqa: E731
        self.stage.until("the queue to be Ready", ready, TIMEOUT_S)

    def replay(self, name: str = "load", **spec: Any) -> None:
        """Apply a Replay of the queue."""
        self._apply("Replay", name, {"queueRef": {"name": self.name}, **spec})

    def _apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        made = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.stage.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))

    def result(self, name: str = "load", timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
        """Wait for the result and return status and reason of the condition Succeeded."""
        known = lambda: self.stage.condition(f"rply/{name}", "Succeeded").get("status") in ("True", "False")  # noqa: E731
        self.stage.until(f"replay {name} to end", known, timeout_s)
        found = self.stage.condition(f"rply/{name}", "Succeeded")
        return found["status"], found["reason"]

    def job(self, name: str = "load") -> str:
        """Return the name of the Replay's Job."""
        return f"{name}-replay"

    def backoff_limit(self, name: str = "load") -> int:
        """Return how many pods of the Job may fail."""
        return int(self.stage.get(f"job/{self.job(name)}")["spec"]["backoffLimit"])

    def container(self, name: str = "load", other_than: str = "") -> str:
        """Return the id of the running container; wait for one that is not `other_than`."""
        found: list[str] = []

        def runs() -> bool:
            pods = json.loads(self.stage.kubectl("get", "pods", "-l", f"job-name={self.job(name)}", "-o", "json"))
            states = [one for pod in pods["items"] for one in pod["status"].get("containerStatuses", ())]
            running = [one["containerID"].rpartition("/")[2] for one in states if "running" in one["state"]]
            found[:] = [one for one in running if one != other_than]
            return bool(found)

        self.stage.until("a running replay pod", runs, TIMEOUT_S)
        return found[0]

    def kill(self, container: str) -> None:
        """Send SIGKILL from the node."""
        node.ctr(self.stage.cluster.bed, "tasks", "kill", "--signal", "SIGKILL", container)

    def pid(self, container: str) -> int:
        """Return the process id of the replayer on the node."""
        rows = [line.split() for line in node.ctr(self.stage.cluster.bed, "tasks", "list").splitlines()]
        return int(next(row[1] for row in rows if row[0] == container))

    def wait(self, name: str = "load", seconds: int = 900) -> None:
        """Wait until the Replay has succeeded, by a watch, which costs no CPU time."""
        self.stage.kubectl("wait", "--for=condition=Succeeded", f"rply/{name}", f"--timeout={seconds}s")

    async def sent(self) -> int:
        """Return how many offsets the origin has: letters, and one marker for each transaction."""
        async with self.open_scene() as scene:
            return sum(span.end for span in await scene.broker.window(self.name))

    def until_sent(self, count: int) -> None:
        """Wait until the origin has at least this many offsets."""
        self.stage.until(f"{count} letters", lambda: asyncio.run(self.sent()) >= count, TIMEOUT_S)

    async def arrived_numbers(self) -> dict[int, list[int]]:
        """Return the numbers of the letters in each partition of the origin, in order."""
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        async with self.open_scene() as scene:
            async for batch in scene.broker.read(self.name, await scene.broker.window(self.name)):
                found[batch[0].place.partition] += [number_of(taken.message) for taken in batch]
        return found

    async def open_letters(self) -> int:
        """Return how many letters are not settled."""
        async with self.open_scene() as scene:
            return len(await scene.open_letters())
