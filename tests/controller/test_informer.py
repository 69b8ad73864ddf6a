"""The parts of the operator that need neither a cluster nor a broker."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.controller import garbage, main, sweep
from deadletter.controller.health import liveness_problem
from deadletter.controller.state.dependents import (
    BY_BROKER,
    BY_DEAD_NAME,
    BY_ROUTE_TARGET,
    QUEUE_INDEXES,
    REPLAY_INDEXES,
)
from deadletter.controller.state.informer import Informer, InformerSpec
from deadletter.controller.state.workqueue import WorkQueue
from deadletter.kube import QUEUES, REPLAYS, Body, RequestThrottle
from deadletter.settings import Settings


def body(name: str, version: int, uid: str = "u", **spec: Any) -> Body:
    meta = {"namespace": "shop", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"brokerRef": {"name": "kafka"}, "dead": {"name": f"{name}.dead"}} | spec}


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": "true", "queueRef": {"name": name}} for name in names]


def snapshot() -> Informer:
    return Informer(InformerSpec(QUEUES, "", QUEUE_INDEXES), lambda *_: None)


def named(found: list[Body]) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def test_an_object_is_found_by_what_it_names_now() -> None:
    queues = snapshot()
    queues.upsert(body("a", 1, routes=routes("c")))
    queues.upsert(body("b", 2, routes=routes("c", "d")))
    assert named(queues.by_index(BY_BROKER, "shop", "kafka")) == ["a", "b"]
    assert named(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a", "b"]
    queues.upsert(body("b", 3, routes=routes("d")))
    assert named(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a"]
    assert named(queues.by_index(BY_DEAD_NAME, "b.dead")) == ["b"]
    queues.remove(body("b", 4))
    assert queues.by_index(BY_DEAD_NAME, "b.dead") == []
    assert queues.by_index(BY_ROUTE_TARGET, "shop", "d") == []


def test_a_default_box_is_found_by_both_its_names() -> None:
    queues = snapshot()
    queues.upsert(body("a", 1, dead={}, source={"name": "orders", "group": "billing"}))
    assert named(queues.by_index(BY_DEAD_NAME, "orders.billing.dlq")) == ["a"]
    assert named(queues.by_index(BY_DEAD_NAME, "{orders}.billing.dlq")) == ["a"]


def test_an_older_sight_and_another_of_its_name_change_nothing() -> None:
    queues = snapshot()
    queues.upsert(body("a", 5, routes=routes("c")))
    queues.upsert(body("a", 4))
    assert named(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a"]
    queues.remove(body("a", 6, uid="another"))
    assert queues.get("shop", "a") is not None


def test_a_selection_is_kept_while_a_replay_that_has_not_ended_takes_it() -> None:
    replays = Informer(InformerSpec(REPLAYS, "", REPLAY_INDEXES), lambda *_: None)
    context: Any = SimpleNamespace(snapshots={REPLAYS: replays})
    preview = body("dry", 1, queueRef={"name": "orders"})
    apply = body("back", 2, queueRef={"name": "orders"}, previewRef={"name": "dry"})
    assert not garbage.is_preview_in_use(context, preview)
    replays.upsert(apply)
    assert garbage.is_preview_in_use(context, preview)
    ended = body("back", 3, queueRef={"name": "orders"}, previewRef={"name": "dry"})
    replays.upsert(ended | {"status": {"completionTime": "2026-11-16T00:00:00Z"}})
    assert not garbage.is_preview_in_use(context, preview)


def test_a_bucket_that_is_shut_lets_nothing_through() -> None:
    bucket = RequestThrottle(rate=100, burst=200)
    now = time.monotonic()
    assert bucket._wait(now) == 0
    bucket.pause(5)
    assert bucket._wait(now + 1) > 3
    assert bucket._wait(now + 60) == 0


def test_a_burst_is_followed_by_the_rate() -> None:
    bucket = RequestThrottle(rate=10, burst=3)
    assert [bucket._wait(1.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert bucket._wait(1.11) == 0


async def test_a_thing_that_is_woken_during_its_pass_is_looked_at_once_more() -> None:
    work: WorkQueue[str] = WorkQueue()
    seen: list[str] = []

    async def look(thing: str) -> None:
        seen.append(thing)
        if len(seen) == 1:
            work.add(thing)
            work.add(thing)

    task = asyncio.create_task(work.run(look))
    work.add("a")
    work.add("a")
    async with asyncio.timeout(60):
        while len(seen) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    assert seen == ["a", "a"]


def test_the_probes_tell_what_is_stuck() -> None:
    def context(swept: float, judged: float, passed: float, waiting: int) -> Any:
        return SimpleNamespace(
            settings=SimpleNamespace(sweep_seconds=10, rejudge_seconds=300),
            pulse=SimpleNamespace(swept_at=swept, judged_at=judged, passed_at=passed),
            work=range(waiting),
        )

    assert liveness_problem(context(1000, 1000, 0, 0), 1000) == ""
    assert liveness_problem(context(1000, 1000, 990, 5), 1000) == ""
    assert "no pass" in liveness_problem(context(1000, 1000, 0, 5), 1000)
    assert "no sweep" in liveness_problem(context(0, 1000, 1000, 0), 1000)
    assert "judged" in liveness_problem(context(1000, 0, 1000, 0), 1000)


async def test_a_watch_that_ends_before_everything_is_listed_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started again then; else it would wait for ever for what nobody lists."""

    @asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[Any]:
        async def lists(*_: Any) -> Any:
            raise KeyError("what nobody thought of")

        yield SimpleNamespace(list=lists)

    monkeypatch.setattr(main, "connect", connect)
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="snapshot-"):
            await main.run(Settings(health_port=0), asyncio.Event())


async def test_a_broker_that_does_not_answer_holds_back_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: dict[str, int] = {"dumb": 0, "well": 0}

    async def sweep_line(_: Any, key: str, __: Any) -> None:
        swept[key] += 1
        if key == "dumb":
            await asyncio.Event().wait()

    monkeypatch.setattr(sweep, "sweep_line", sweep_line)
    context: Any = SimpleNamespace(
        pool=SimpleNamespace(all=lambda: [("dumb", None), ("well", None)]),
        settings=SimpleNamespace(sweep_seconds=0.01),
        pulse=SimpleNamespace(swept_at=0.0),
    )
    task = asyncio.create_task(sweep.sweep_forever(context))
    async with asyncio.timeout(60):
        while swept["well"] < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert swept["dumb"] == 1


def test_an_allowed_address_that_is_none_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLQ_ALLOW_ADDRESSES", "10.0.0.0/8, fd00::/8,127.0.0.1")
    assert Settings().allow_addresses == ("10.0.0.0/8", "fd00::/8", "127.0.0.1")
    monkeypatch.setenv("DLQ_ALLOW_ADDRESSES", "10.0.0.0/8,kafka.infra.svc")
    with pytest.raises(ValueError, match=r"allow_addresses[\s\S]+kafka\.infra\.svc"):
        Settings()
