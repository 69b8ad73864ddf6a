"""The programs that `bench.soak` leaves running, beside the couriers: a sweep and a replayer.

python -m bench.soaked {sweep,replay} {idle,loaded} <connections as JSON>
"""

import asyncio
import json
import sys
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from deadletter.api.assignments import ReplayAssignment
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_stats import BoxStats
from deadletter.workers import process
from deadletter.workers.replay.main import run_replay

ANYWHERE = ("0.0.0.0/0", "::/0")
IDLE = 50  # queues a broker
SWEEP_SECONDS = 10.0  # as the operator's settings have it
REPLAY_SECONDS = 20.0


@dataclass(frozen=True)
class Queue:
    """The boxes of one queue; `mended` is where its letters are replayed to."""

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
    def mended(self) -> str:
        return self._box("mended")

    def _boxes(self) -> dict[str, str]:
        return {"source": self.source, "dead": self.dead, "retry": self.retry, "ledger": self.ledger}

    def assignment(self, address: dict, url: str) -> dict:
        """What its courier is told."""
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
        """All that lies there goes to the mended ones; one name for all, for a pod of ours has one Replay to count."""
        told = {"namespace": "soak", "name": "again", "uid": uid, "queue": self.name, "broker": address}
        told |= {"boxes": self._boxes(), "spec": {"queueRef": {"name": self.name}}}
        return ReplayAssignment.model_validate({**told, "target": {"kind": "Box", "box": self.mended}})


def connections(kafka: str, redis: str) -> dict[str, dict]:
    """Both brokers, as a BrokerConnection names them."""
    return {"kafka": {"kafka": {"bootstrapServers": [kafka]}}, "redis": {"redis": {"url": redis}}}


def open_one(address: dict) -> AbstractAsyncContextManager[Broker]:
    """An open broker."""
    return open_broker(BrokerConnectionSpec.model_validate(address), lambda _name, _key: b"", ANYWHERE)


async def sweep(state: str, addresses: dict[str, dict], stop: asyncio.Event) -> None:
    """Readings of many queues, kept between sweeps, until told to stop."""
    names = ["busy"] if state == "loaded" else ["quiet", *(f"idle-{number}" for number in range(IDLE))]
    async with AsyncExitStack() as stack:
        kept = []
        for kind, address in addresses.items():
            broker = await stack.enter_async_context(open_one(address))
            queues = [Queue(kind, name) for name in names]
            kept.append((broker.monitor(), [MonitoredBox(one.dead, one.ledger, one.retry) for one in queues]))
        while not await _comes(stop, SWEEP_SECONDS):
            for registers, watched in kept:
                found = await registers.sweep(watched, time.time_ns() // 1_000_000)
                wrong = [str(one) for one in found.values() if not isinstance(one, BoxStats)]
                print(f"swept {len(found)} queues, depth {_depth(found)}, wrong: {wrong[:3]}", flush=True)


def _depth(found) -> int:
    return sum(one.depth for one in found.values() if isinstance(one, BoxStats))


async def replay_on(_state: str, addresses: dict[str, dict], stop: asyncio.Event) -> None:
    """One Replay after the other, each forgotten as the operator forgets one that was deleted."""
    number = 0
    while not await _comes(stop, REPLAY_SECONDS):
        number += 1
        for kind, address in addresses.items():
            queue, uid = Queue(kind, "busy"), f"replay-{number}"
            async with open_one(address) as broker:
                ending = await run_replay(queue.replay(address, uid), broker, stop)
                await broker.delete_replay_records(queue.ledger, uid)
            print(f"{uid} on {kind}: {ending.reason}", flush=True)


async def _comes(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


ROLES = {"sweep": sweep, "replay": replay_on}


async def work(stop: asyncio.Event) -> int:
    """The role that was asked for."""
    role, state, addresses = sys.argv[1:]
    await ROLES[role](state, json.loads(addresses), stop)
    return 0


if __name__ == "__main__":
    sys.exit(process.run(work))
