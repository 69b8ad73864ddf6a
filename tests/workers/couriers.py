"""Couriers on a memory broker or any other, started and stopped inside a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.memory import MemoryBroker, MemoryServer
from deadletter.brokers.memory import subscription as memory_desk
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Envelope, Message
from deadletter.net.secrets import Secrets
from deadletter.wall_clock import now_ms
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.main import delivery_for, subscription_spec
from deadletter.workers.courier.status import StatusReporter
from deadletter.workers.delivery.http.resolver import Resolver, resolve_host
from deadletter.workers.process import cancel_and_wait
from tests.helpers.headers import read_own_envelope
from tests.workers.http_service import serving, until

LOOPBACK = ("127.0.0.0/8",)
QUICK = {"backoff": {"strategy": "Fixed", "initial": "10ms", "max": "10ms"}, "circuitBreaker": {"enabled": False}}


def no_secret(name: str, key: str) -> bytes:
    raise KeyError(f"{name}/{key}")


def courier_assignment(url: str, prefix: str = "", **more: Any) -> CourierAssignment:
    """An assignment; `policy`, `http` and `delivery` take the fields of the API."""
    policy = more.pop("policy", QUICK)
    delivery = {"http": {"url": url, **more.pop("http", {})}, **more.pop("delivery", {})}
    boxes = {"source": f"{prefix}orders", "dead": f"{prefix}dead", "retry": f"{prefix}retry"}
    assignment = {
        "namespace": "test",
        "queue": "orders",
        "uid": "uid-1",
        "generation": 1,
        "broker": {"redis": {"url": "redis://127.0.0.1:6379/0"}},
        "boxes": {**boxes, "ledger": f"{prefix}dead.ledger"},
        "group": f"{prefix}billing".strip("{}.") if prefix else "billing",
        "start_from": "Earliest",
        "policy": policy,
        "delivery": delivery,
        "url": url,
        "allow": LOOPBACK,
        **more,
    }
    return CourierAssignment.model_validate(assignment)


class MemoryQueue:
    """The boxes of one queue on a memory broker, and couriers that work on them."""

    def __init__(self, partitions: int = 1) -> None:
        self.server = MemoryServer()
        self.broker: Broker = MemoryBroker(self.server)
        for name in ("orders", "dead", "other"):
            self.server.create_box(BoxSpec(name, partitions))
        self.server.create_box(BoxSpec("retry", is_retry_box=True))

    def send(self, *messages: Message, partition: int | None = None) -> None:
        self.server.seed("orders", list(messages), partition)

    def buried(self, box: str = "dead") -> list[Message]:
        return [message for partition in self.server.boxes[box].partitions for message in partition.values()]

    def envelopes(self, box: str = "dead") -> list[Envelope]:
        return [envelope for message in self.buried(box) if (envelope := read_own_envelope(message))]

    @property
    def parked(self) -> list[Message]:
        return [waiting.message for waiting in self.server.boxes["retry"].waiting.values()]

    @property
    def is_settled(self) -> bool:
        """True if no message is left to claim, held by a courier or parked."""
        group = self.server.groups["orders", "billing"]
        source = self.server.boxes["orders"]
        taken = all(group.next_offsets.get(number, 0) >= end for number, end in enumerate(source.end_offsets))
        return taken and not group.holders and not group.released and not self.parked

    @property
    def pause_reasons(self) -> list[str]:
        return [status.paused for status in self.server.ledgers["dead.ledger"].worker_statuses.values()]

    @asynccontextmanager
    async def courier(
        self,
        assignment: CourierAssignment,
        pod: str = "pod-0",
        paused: Any = str,
        resolver: Resolver = resolve_host,
        secrets: Secrets = no_secret,
    ) -> AsyncIterator[Courier]:
        """Run a courier while the block runs."""
        with patch.object(memory_desk, "CLAIM_TIMEOUT_S", 0.05):  # so that stopping is fast
            async with running(self.broker, assignment, pod, paused, resolver, secrets) as courier:
                yield courier


@asynccontextmanager
async def running(
    broker: Broker,
    assignment: CourierAssignment,
    pod: str = "pod-0",
    paused: Any = str,
    resolver: Resolver = resolve_host,
    secrets: Secrets = no_secret,
) -> AsyncIterator[Courier]:
    """Run a courier on any broker while the block runs."""
    stop = asyncio.Event()
    delivery = delivery_for(assignment, secrets, resolver)
    async with broker.subscribe(subscription_spec(assignment, pod)) as subscription:
        courier = Courier(assignment, subscription, delivery, paused)
        reporter = StatusReporter(courier, subscription, pod, (assignment.namespace, assignment.queue), now_ms, 30)
        working, reporting = asyncio.ensure_future(courier.run(stop)), asyncio.ensure_future(reporter.run())
        try:
            yield courier
        finally:
            stop.set()
            await cancel_and_wait(reporting)
            await working
            await delivery.close()


def message(text: str = "body", key: str | None = "key", *headers: tuple[str, bytes]) -> Message:
    return Message(key.encode() if key is not None else None, text.encode(), tuple(headers), 1_700_000_000_000)


async def buried_with(answer, policy=None, **more) -> MemoryQueue:
    """Deliver one message to a service with this answer until it is settled; return the queue."""
    queue = MemoryQueue()
    queue.send(message())
    async with serving(answer) as service:
        assignment = courier_assignment(service.url, policy=policy or QUICK, **more)
        async with queue.courier(assignment):
            await until(lambda: queue.is_settled)
    return queue
