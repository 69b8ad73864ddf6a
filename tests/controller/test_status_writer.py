"""What is written to the API server, and when: statuses, Events, and nothing by hearsay."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller import garbage
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import loop
from deadletter.controller.reconcile import queue as queues
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.state.broker_pool import PooledBroker
from deadletter.controller.state.secret_cache import SecretCache
from deadletter.controller.state.workqueue import WorkQueue
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, EVENTS, QUEUES, REPLAYS, ApiError, Body
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import queue_status
from deadletter.settings import Settings
from tests.plan.builders import NOW, box_stats, connection, delivered_queue, metadata, plain_queue

ORDERS = ObjectKey(QUEUES, "shop", "orders")
AWAY = Finding(Reason.BrokerUnreachable, "away", True, BOXES_READY)


class Server:
    """Keeps what was written to it."""

    def __init__(self) -> None:
        self.statuses: list[Body] = []
        self.events: list[tuple[str, str]] = []
        self.version = 1
        self.there: Body | None = None
        self.refuses = 0

    async def patch(self, *_: Any) -> Body:
        self.version += 1
        self.statuses.append(_[3]["status"])
        return {"metadata": metadata("orders", resourceVersion=str(self.version)), "spec": plain_queue().spec.to_wire()}

    async def create(self, resource: Any, _: str, made: Body) -> None:
        assert resource is EVENTS
        self.events.append((made["type"], made["reason"]))

    async def get(self, *_: Any) -> Body | None:
        if self.refuses:
            raise ApiError(self.refuses, "no")
        return self.there


def told(depth: int, status: Body, found: Finding | None = None) -> Body:
    """The next status of a queue that says this."""
    queue = plain_queue().model_copy(update={"status": type(plain_queue().status).model_validate(status)})
    facts = QueueFacts(connection=connection(), stats=box_stats(depth, NOW if depth else None), now=NOW)
    return queue_status(queue, facts, found)


async def test_numbers_are_written_at_most_every_thirty_seconds() -> None:
    server: Any = Server()
    context = OperatorContext(Settings(), server)
    first = told(0, {})

    async def write(old: Body, new: Body) -> int:
        await statuses.write_status(context, ORDERS, plain_queue(), {"status": old}, new)
        return len(server.statuses)

    assert await write({}, first) == 1
    context.workqueue = WorkQueue()  # the write woke it
    second = told(5, first)
    assert await write(first, second) == 1, "depth alone waits"
    assert 29 < context.workqueue._timers[ORDERS].when() - time.monotonic() <= 30
    assert await write(second, told(5, second)) == 1, "nothing differs"
    worse = told(5, second, AWAY)
    assert await write(second, worse) == 2, "a condition does not wait"
    assert server.statuses[-1].keys() == {"conditions"}
    context.status_written_at[ORDERS] -= 31
    assert await write(worse, told(6, worse, AWAY)) == 3
    assert server.statuses[-1] == {"depth": 6}


async def test_an_event_tells_what_turned_and_nothing_else() -> None:
    server: Any = Server()
    context = OperatorContext(Settings(status_seconds=0), server)
    status: Body = {}
    heard: list[list[tuple[str, str]]] = []
    for depth, found in ((0, None), (5, None), (5, AWAY), (6, AWAY), (6, None)):
        old, status = status, told(depth, status, found)
        await statuses.write_status(context, ORDERS, plain_queue(), {"status": old}, status)
        heard.append(server.events.copy())
        server.events.clear()
    ready, away = [("Normal", "Reconciled")], [("Warning", "BrokerUnreachable")]
    assert heard == [ready, [], away, [], ready]


async def test_a_secret_is_read_again_after_its_time_and_sooner_when_it_is_missing() -> None:
    server: Any = Server()
    store = SecretCache(server, 60, require_label=False, grant="")

    async def facts(*passed: float) -> list[bool]:
        """Is it there, after so many seconds since it was read?"""
        found = []
        for seconds in passed:
            store._cached["shop", "login"].read_at -= seconds
            found.append((await store.fact("shop", "login")).exists)
        return found

    assert not (await store.fact("shop", "login")).exists
    server.there = {"metadata": metadata("login"), "data": {"password": "eA=="}}
    assert await facts(4, 2) == [False, True]
    server.there = None
    assert await facts(58, 3) == [True, False]


async def test_a_secret_is_kept_as_long_as_a_line_needs_it() -> None:
    context = OperatorContext(Settings(), cast("Any", Server()))
    spec = BrokerConnectionSpec.model_validate({"redis": {"url": "redis://r:6379/0", "secretRef": {"name": "login"}}})
    context.pool._brokers["shop", "broker"] = PooledBroker(spec, None, None, None)  # type: ignore[arg-type]
    assert garbage.secret_users(context).keys() == {("shop", "login")}


@pytest.mark.parametrize(
    ("queue", "reason", "asks_again"),
    [
        (plain_queue(brokerRef={"name": "elsewhere"}), "BrokerConnectionNotFound", False),
        (plain_queue(retryPolicyRef={"name": "slow"}), "RetryPolicyNotFound", False),
        (delivered_queue(), "ServiceNotFound", True),
    ],
)
async def test_what_a_snapshot_will_tell_is_not_asked_for_again_and_again(
    queue: DeadLetterQueue, reason: str, asks_again: bool
) -> None:
    server: Any = Server()
    context = OperatorContext(Settings(), server)
    broker = {"metadata": metadata("broker", resourceVersion="1"), "spec": connection().spec.to_wire()}
    context.informers[CONNECTIONS].upsert(broker)
    body = {"metadata": metadata("orders", resourceVersion="1"), "spec": queue.spec.to_wire()}
    assert await queues.reconcile(context, ORDERS, queue, body) is asks_again
    assert server.statuses[0]["conditions"][0]["reason"] == reason


async def test_many_that_wait_ask_together_at_most_twenty_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    context = OperatorContext(Settings(), cast("Any", Server()))
    body = {"metadata": metadata("orders", resourceVersion="1"), "spec": plain_queue().spec.to_wire()}
    context.informers[QUEUES].upsert(body)
    monkeypatch.setattr(loop, "_judge", lambda *_: asyncio.sleep(0, result=True))
    for many, seconds in ((10, 15), (2_000, 100)):
        context.workqueue = WorkQueue()
        for number in range(many - 1):
            context.workqueue._failures[ORDERS._replace(name=f"q-{number}")] = 1
        context.workqueue._failures[ORDERS] = 9
        await loop.reconcile_one(context, ORDERS)
        assert context.workqueue._timers[ORDERS].when() - time.monotonic() == pytest.approx(seconds, abs=1)


def replay(uid: str = "uid-back") -> Body:
    spec, status = {"queueRef": {"name": "orders"}}, {"startTime": "2026-11-16T00:00:00Z"}
    return {"metadata": metadata("back", uid=uid), "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("there", "refuses", "forgotten", "kept"),
    [
        (None, 0, True, False),
        (replay("another"), 0, True, False),
        (replay(), 0, False, False),
        (None, 503, False, True),
        (None, 403, False, False),
    ],
)
async def test_traces_of_a_replay_go_only_when_it_is_gone(
    there: Body | None, refuses: int, forgotten: bool, kept: bool
) -> None:
    server: Any = Server()
    server.there, server.refuses = there, refuses
    context = OperatorContext(Settings(), server)
    queue = {"metadata": metadata("orders", resourceVersion="1"), "spec": plain_queue().spec.to_wire()}
    context.informers[QUEUES].upsert(queue)
    forgot: list[str] = []

    async def forget(_: str, uid: str) -> None:
        forgot.append(uid)

    broker: Any = SimpleNamespace(delete_replay_records=forget)
    context.pool._brokers["shop", "broker"] = PooledBroker(connection().spec, None, broker, None)  # type: ignore[arg-type]
    context.informers[REPLAYS].upsert(replay() | {"metadata": metadata("back", uid="uid-back", resourceVersion="2")})
    context.informers[REPLAYS].remove(replay())
    gone, context.deleted_replays = context.deleted_replays, []
    await garbage.clean_ledger(context, gone[0])
    assert forgot == (["uid-back"] if forgotten else [])
    assert context.deleted_replays == (gone if kept else [])
