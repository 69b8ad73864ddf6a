"""Shared by redrive tests: a redriver with a clock and a gate that the test sets."""

import asyncio

from deadletter.api.worker_config import RedriveAssignment
from deadletter.brokers.types import MonitoredBox
from deadletter.core.heartbeats import WorkerStatus
from deadletter.workers.redrive.redriver import Redriver
from tests.workers.replay_scene import Scene

START = 1_700_000_000_000
POLICY = {"maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "10s", "max": "10s"}}


class RedriveStage:
    """A redriver of a scene that can be restarted, with a clock and a gate that the test sets."""

    def __init__(self, scene: Scene, **more) -> None:
        self.scene, self.now, self.gate, self.stop = scene, START, "", asyncio.Event()
        self.assignment = RedriveAssignment.model_validate(
            {
                "namespace": "test",
                "queue": "orders",
                "uid": "queue-1",
                "generation": 1,
                "broker": scene.connection,
                "boxes": scene.boxes.model_dump(),
                "policy": POLICY,
                **more,
            }
        )
        self.restart()

    def restart(self) -> None:
        self.redriver = Redriver(self.assignment, self.scene.broker, self.stop, lambda: self.now, lambda: self.gate)

    async def run_after(self, seconds: int) -> int:
        """Move the clock forward, run the redriver once and return how many letters it sent."""
        self.now += seconds * 1_000
        return await self.redriver.run_once()

    async def reported(self) -> tuple[WorkerStatus, ...]:
        """Return the worker statuses that the operator's sweep reads."""
        monitored = MonitoredBox(self.scene.boxes.dead, self.scene.boxes.ledger)
        return (await self.scene.broker.monitor().sweep([monitored], self.now))[monitored.dead].couriers
