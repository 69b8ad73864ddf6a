"""When statuses and Events are written, and when an object is reconciled again."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile import loop, queue
from deadletter.controller.reconcile.status import write_status
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, EVENTS, QUEUES, Body
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import queue_status
from deadletter.settings import Settings
from tests.controller.contexts import ORDERS, empty_workqueue
from tests.plan.builders import NOW, box_stats, connection, delivered_queue, metadata, plain_queue

UNREACHABLE = Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY)


class FakeKube:
    """An API server that records what is written to it, and on which nothing else exists."""

    def __init__(self) -> None:
        self.statuses: list[Body] = []
        self.events: list[tuple[str, str]] = []
        self.version = 1

    async def patch(self, _resource: Any, _namespace: str, _name: str, patch: Body, _subresource: str = "") -> Body:
        self.version += 1
        self.statuses.append(patch["status"])
        return {"metadata": metadata("orders", resourceVersion=str(self.version)), "spec": plain_queue().spec.to_wire()}

    async def create(self, resource: Any, _: str, event: Body) -> None:
        assert resource is EVENTS
        self.events.append((event["type"], event["reason"]))

    async def get(self, *_: Any) -> Body | None:
        return None


def next_status(depth: int, status: Body, found: Finding | None = None) -> Body:
    """Return the status of a queue that has this status now."""
    known = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(status)})
    facts = QueueFacts(connection=connection(), stats=box_stats(depth, NOW if depth else None), now=NOW)
    return queue_status(known, facts, found)


async def test_numbers_are_written_at_most_every_thirty_seconds() -> None:
    kube: Any = FakeKube()
    context = OperatorContext(Settings(), kube)
    first = next_status(0, {})

    async def count_writes(old: Body, new: Body) -> int:
        await write_status(context, ORDERS, plain_queue(), {"status": old}, new)
        return len(kube.statuses)

    assert await count_writes({}, first) == 1
    empty_workqueue(context)  # the write has added the queue
    second = next_status(5, first)
    assert await count_writes(first, second) == 1, "depth alone waits"
    assert 29 < context.workqueue._timers[ORDERS].when() - time.monotonic() <= 30
    assert await count_writes(second, next_status(5, second)) == 1, "nothing differs"
    worse = next_status(5, second, UNREACHABLE)
    assert await count_writes(second, worse) == 2, "a condition does not wait"
    assert kube.statuses[-1].keys() == {"conditions"}
    context.status_written_at[ORDERS] -= 31
    assert await count_writes(worse, next_status(6, worse, UNREACHABLE)) == 3
    assert kube.statuses[-1] == {"depth": 6}


async def test_an_event_is_created_for_a_changed_condition_only() -> None:
    kube: Any = FakeKube()
    context = OperatorContext(Settings(status_seconds=0), kube)
    status: Body = {}
    events: list[list[tuple[str, str]]] = []
    for depth, found in ((0, None), (5, None), (5, UNREACHABLE), (6, UNREACHABLE), (6, None)):
        old, status = status, next_status(depth, status, found)
        await write_status(context, ORDERS, plain_queue(), {"status": old}, status)
        events.append(kube.events.copy())
        kube.events.clear()
    ready, unreachable = [("Normal", "Reconciled")], [("Warning", "BrokerUnreachable")]
    assert events == [ready, [], unreachable, [], ready]


async def test_a_courier_that_starts_is_no_warning_and_one_that_is_lost_is() -> None:
    kube: Any = FakeKube()
    context = OperatorContext(Settings(status_seconds=0), kube)
    status: Body = {}
    for available in (0, 1, 0):
        model = delivered_queue(status=status)
        deployment = {"status": {"availableReplicas": available}}
        facts = QueueFacts(connection=connection(), deployment=deployment, stats=box_stats(0, None), now=NOW)
        old, status = status, queue_status(model, facts, None)
        await write_status(context, ORDERS, model, {"status": old}, status)
    assert kube.events == [
        ("Normal", "WaitingForCourier"),
        ("Normal", "Reconciled"),
        ("Warning", "WaitingForCourier"),
    ]


@pytest.mark.parametrize(
    ("model", "reason", "is_retried"),
    [
        (plain_queue(brokerRef={"name": "elsewhere"}), "BrokerConnectionNotFound", False),
        (plain_queue(retryPolicyRef={"name": "slow"}), "RetryPolicyNotFound", False),
        (delivered_queue(), "ServiceNotFound", True),
    ],
)
async def test_a_missing_object_is_polled_only_if_no_informer_watches_it(
    model: DeadLetterQueue, reason: str, is_retried: bool
) -> None:
    kube: Any = FakeKube()
    context = OperatorContext(Settings(), kube)
    broker = {"metadata": metadata("broker", resourceVersion="1"), "spec": connection().spec.to_wire()}
    context.informers[CONNECTIONS].upsert(broker)
    body = {"metadata": metadata("orders", resourceVersion="1"), "spec": model.spec.to_wire()}
    assert await queue.reconcile(context, ORDERS, model, body) is is_retried
    assert kube.statuses[0]["conditions"][0]["reason"] == reason


async def test_objects_that_fail_are_retried_at_most_twenty_times_a_second_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = OperatorContext(Settings(), SimpleNamespace())  # type: ignore[arg-type]
    body = {"metadata": metadata("orders", resourceVersion="1"), "spec": plain_queue().spec.to_wire()}
    context.informers[QUEUES].upsert(body)
    monkeypatch.setattr(loop, "_dispatch", lambda *_: asyncio.sleep(0, result=True))
    for failing, delay in ((10, 15), (2_000, 100)):
        empty_workqueue(context)
        for number in range(failing - 1):
            context.workqueue._failures[ORDERS._replace(name=f"q-{number}")] = 1
        context.workqueue._failures[ORDERS] = 9
        await loop.reconcile_one(context, ORDERS)
        assert context.workqueue._timers[ORDERS].when() - time.monotonic() == pytest.approx(delay, abs=1)
