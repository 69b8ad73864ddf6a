"""A Replay in the cluster over letters on Kafka: filled, started, disturbed, and checked to the last letter."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.core.boxes import BoxSpec
from tests.bed import node
from tests.demo.stage import Stage
from tests.workers.replay_scene import Scene, letter, number_of

ANYWHERE = ("0.0.0.0/0", "::/0")
PARTITIONS = 4
PATIENCE = 300
API = "deadletter.dev/v1alpha1"


@dataclass
class Haul:
    """An adopted dead topic of `PARTITIONS` partitions, its origin topic, and a queue of that name in the cluster."""

    stage: Stage
    address: str
    name: str = field(default_factory=lambda: f"haul-{uuid.uuid4().hex[:8]}")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Scene]:
        """The scene with an open broker."""
        scene = Scene(None, self.name, {"kafka": {"bootstrapServers": [self.address]}}, PARTITIONS)
        async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
            scene.broker = broker
            yield scene

    async def fill(self, share: int, value: bytes | None = None) -> None:
        """So many letters a partition, each of the same partition of its origin."""
        async with self.opened() as scene:
            await self._make(scene.broker)
            for first in range(0, share, 1_000):
                for partition in range(PARTITIONS):
                    numbers = range(first, min(first + 1_000, share))
                    batch = [letter(number, self.name, partition=partition) for number in numbers]
                    for message in batch:
                        message.value = value or message.value
                    await scene.bury(*batch, partition=partition)

    async def _make(self, broker: Broker) -> None:
        for name in (self.name, f"{self.name}.dlq"):
            await broker.ensure(BoxSpec(name, partitions=PARTITIONS, retention_ms=-1))

    def watch(self) -> None:
        """The queue in the cluster, which becomes Ready."""
        broker = {"kafka": {"bootstrapServers": [self.address]}}
        queue = {"brokerRef": {"name": self.name}, "dead": {"name": f"{self.name}.dlq", "adopt": True}}
        self._apply("BrokerConnection", self.name, broker)
        self._apply("DeadLetterQueue", self.name, queue)
        ready = lambda: self.stage.condition(f"dlq/{self.name}", "Ready").get("status") == "True"  # noqa: E731
        self.stage.until("the queue to be Ready", ready, PATIENCE)

    def replay(self, name: str = "haul", **spec: Any) -> None:
        """Apply a Replay of it."""
        self._apply("Replay", name, {"queueRef": {"name": self.name}, **spec})

    def _apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        made = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.stage.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))

    def ending(self, name: str = "haul", patience: float = PATIENCE) -> tuple[str, str]:
        """Status and reason of Succeeded, once it is known."""
        known = lambda: self.stage.condition(f"rply/{name}", "Succeeded").get("status") in ("True", "False")  # noqa: E731
        self.stage.until(f"replay {name} to end", known, patience)
        found = self.stage.condition(f"rply/{name}", "Succeeded")
        return found["status"], found["reason"]

    def job(self, name: str = "haul") -> str:
        """What the Replay's Job is called."""
        return f"{name}-replay"

    def patience(self, name: str = "haul") -> int:
        """How many pods of the Job may fail by now."""
        return int(self.stage.get(f"job/{self.job(name)}")["spec"]["backoffLimit"])

    def container(self, name: str = "haul", other_than: str = "") -> str:
        """The id of the container that runs now; waits for one that is not `other_than`."""
        found: list[str] = []

        def runs() -> bool:
            pods = json.loads(self.stage.kubectl("get", "pods", "-l", f"job-name={self.job(name)}", "-o", "json"))
            states = [one for pod in pods["items"] for one in pod["status"].get("containerStatuses", ())]
            running = [one["containerID"].rpartition("/")[2] for one in states if "running" in one["state"]]
            found[:] = [one for one in running if one != other_than]
            return bool(found)

        self.stage.until("a replayer to run", runs, PATIENCE)
        return found[0]

    def kill(self, container: str) -> None:
        """SIGKILL, from the node's side."""
        node.ctr(self.stage.cluster.bed, "tasks", "kill", "--signal", "SIGKILL", container)

    def pid(self, container: str) -> int:
        """The replayer's process, as the node sees it."""
        rows = [line.split() for line in node.ctr(self.stage.cluster.bed, "tasks", "list").splitlines()]
        return int(next(row[1] for row in rows if row[0] == container))

    def wait(self, name: str = "haul", seconds: int = 900) -> None:
        """Until it has succeeded, by a watch: it costs the machine nothing."""
        self.stage.kubectl("wait", "--for=condition=Succeeded", f"rply/{name}", f"--timeout={seconds}s")

    async def sent(self) -> int:
        """How many offsets the origin has by now: letters, and a marker a transaction."""
        async with self.opened() as scene:
            return sum(span.end for span in await scene.broker.window(self.name))

    def until_sent(self, count: int) -> None:
        """Wait until at least so many offsets of the origin are taken."""
        self.stage.until(f"{count} letters", lambda: asyncio.run(self.sent()) >= count, PATIENCE)

    async def arrived(self) -> dict[int, list[int]]:
        """The numbers that lie in each partition of the origin, in their order."""
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        async with self.opened() as scene:
            async for batch in scene.broker.read(self.name, await scene.broker.window(self.name)):
                found[batch[0].place.partition] += [number_of(taken.message) for taken in batch]
        return found

    async def open_letters(self) -> int:
        """How many letters are not settled."""
        async with self.opened() as scene:
            return len(await scene.open_letters())
