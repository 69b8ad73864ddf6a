"""Programs that `bench.soak` runs next to the couriers: a sweep and Replays one after the other.

python -m bench.soak_workers {sweep,replay} {idle,loaded} <connections as JSON>
"""

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats
from deadletter.wall_clock import now_ms
from deadletter.workers import process
from deadletter.workers.backoff import wait_for_event
from deadletter.workers.replay.main import run_replay

ANYWHERE = ("0.0.0.0/0", "::/0")
IDLE_QUEUES = 50  # of each broker
SWEEP_SECONDS = 10.0  # the operator's default
REPLAY_SECONDS = 20.0


@dataclass(frozen=True)
class Queue:
    """Names of the boxes of one queue; its letters are replayed to `replayed`."""

    kind: str
    name: str

    def _box(self, suffix: str) -> str:
        return f"{{soak-{self.name}}}.{suffix}" if self.kind == "redis" else f"soak-{self.name}.{suffix}"

    @property
    def source(self) -> str:
        return self._box("orders")

    @property
    def dead(self) -> str:
        return self._box("dlq")

    @property
    def retry(self) -> str:
        return self._box("dlq.retry")

    @property
    def ledger(self) -> str:
        return self._box("dlq.ledger")

    @property
    def replayed(self) -> str:
        return self._box("replayed")

    def _boxes(self) -> dict[str, str]:
        return {"source": self.source, "dead": self.dead, "retry": self.retry, "ledger": self.ledger}

    def assignment(self, address: dict, url: str) -> dict:
        """Return the assignment of its courier."""
        backoff = {"strategy": "Fixed", "initial": "5s", "max": "5s"}
        return {
            "namespace": "soak",
            "queue": self.name,
            "uid": self.name,
            "generation": 1,
            "broker": address,
            "boxes": self._boxes(),
            "group": f"soak-{self.name}",
            "start_from": "Earliest",
            "policy": {"maxAttempts": 5, "backoff": backoff, "circuitBreaker": {"window": 500}},
            "delivery": {"http": {"url": url}, "inlineLimit": "1s"},
            "url": url,
            "allow": ANYWHERE,
        }

    def replay(self, address: dict, uid: str) -> ReplayAssignment:
        """Return an assignment that replays all letters; a pod has one Replay in its metrics, so all share a name."""
        fields = {"namespace": "soak", "name": "again", "uid": uid, "queue": self.name, "broker": address}
        fields |= {"boxes": self._boxes(), "spec": {"queueRef": {"name": self.name}}}
        return ReplayAssignment.model_validate({**fields, "target": {"kind": "Box", "box": self.replayed}})


def connections(kafka: str, redis: str) -> dict[str, dict]:
    """Return the specs of two BrokerConnections."""
    return {"kafka": {"kafka": {"bootstrapServers": [kafka]}}, "redis": {"redis": {"url": redis}}}


def open_address(address: dict) -> AbstractAsyncContextManager[Broker]:
    """Open the broker of a BrokerConnection spec."""
    return open_broker(BrokerConnectionSpec.model_validate(address), lambda _name, _key: b"", ANYWHERE)


async def sweep(state: str, addresses: dict[str, dict], stop: asyncio.Event) -> None:
    """Sweep many queues at the interval of the operator until stopped."""
    names = ["busy"] if state == "loaded" else ["quiet", *(f"idle-{number}" for number in range(IDLE_QUEUES))]
    async with AsyncExitStack() as stack:
        monitors = []
        for kind, address in addresses.items():
            broker = await stack.enter_async_context(open_address(address))
            queues = [Queue(kind, name) for name in names]
            monitors.append((broker.monitor(), [MonitoredBox(one.dead, one.ledger, one.retry) for one in queues]))
        while not await wait_for_event(stop, SWEEP_SECONDS):
            for monitor, boxes in monitors:
                found = await monitor.sweep(boxes, now_ms())
                errors = [str(one) for one in found.values() if not isinstance(one, BoxStats)]
                print(f"swept {len(found)} queues, depth {_depth(found)}, errors: {errors[:3]}", flush=True)


def _depth(found) -> int:
    return sum(one.depth for one in found.values() if isinstance(one, BoxStats))


async def replay_repeatedly(_state: str, addresses: dict[str, dict], stop: asyncio.Event) -> None:
    """Run one Replay after the other and delete the records of each, as the operator does for a deleted Replay."""
    number = 0
    while not await wait_for_event(stop, REPLAY_SECONDS):
        number += 1
        for kind, address in addresses.items():
            queue, uid = Queue(kind, "busy"), f"replay-{number}"
            async with open_address(address) as broker:
                result = await run_replay(queue.replay(address, uid), broker, stop)
                await broker.delete_replay_records(queue.ledger, uid)
            print(f"{uid} on {kind}: {result.reason}", flush=True)


ROLES = {"sweep": sweep, "replay": replay_repeatedly}


async def run_role(stop: asyncio.Event) -> int:
    """Run the role that the command line names."""
    role, state, addresses = sys.argv[1:]
    await ROLES[role](state, json.loads(addresses), stop)
    return 0


if __name__ == "__main__":
    sys.exit(process.run(run_role))
