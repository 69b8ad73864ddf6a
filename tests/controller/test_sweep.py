"""What a sweep keeps, shows and wakes, without a cluster and without a broker."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter import metrics
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers import errors
from deadletter.brokers.types import BoxState, ServerInfo
from deadletter.controller import health, sweep
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import boxes, loop, queue
from deadletter.controller.reconcile.facts import gather_queue_facts
from deadletter.controller.state.broker_pool import PooledBroker
from deadletter.core.boxes import BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.kube import CONNECTIONS, QUEUES
from deadletter.plan.queue_status import queue_status
from deadletter.settings import Settings
from tests.plan.builders import NOW, connection, metadata, plain_queue

KEY = ("shop", "orders")
ORDERS = ObjectKey(QUEUES, *KEY)
DEAD = "orders.dead"


def operating(**spec: Any) -> OperatorContext:
    """An operator that knows one queue, whose box was found and whose status says so."""
    context = OperatorContext(Settings(), SimpleNamespace())
    for resource, thing in ((CONNECTIONS, connection()), (QUEUES, plain_queue(**spec))):
        body = {"metadata": metadata(thing.name, resourceVersion="1"), "spec": thing.spec.to_wire()}
        context.informers[resource].upsert(body)
    context.observed.surveys[KEY] = BoxSurvey((), {DEAD: BoxState(DEAD, 1)}, time.monotonic())
    return context


def line(answer: Callable[[], Mapping[str, Any]]) -> Any:
    async def answers(*_: Any) -> Mapping[str, Any]:
        return answer()

    return SimpleNamespace(registers=SimpleNamespace(sweep=answers), broker=SimpleNamespace(describe=answers))


async def swept(context: OperatorContext, answer: Any) -> None:
    await sweep.sweep_broker(context, ("shop", "broker"), line(lambda: {DEAD: answer}))


def shown() -> dict[str, float]:
    """Every series of the queue, by its metric."""
    return {
        sample.name: sample.value
        for metric in (*metrics.QUEUE_METRICS, *metrics.EXTRA_LABEL_METRICS)
        for sample in metric.collect()[0].samples
        if sample.labels.get("queue") == "orders" and not sample.name.endswith("_created")
    }


@pytest.fixture(autouse=True)
def _nothing_is_shown() -> None:
    metrics.remove_queue(*KEY)


@pytest.mark.parametrize("answer", [BoxStats(3, NOW), errors.BrokerUnreachable("away"), errors.LedgerCorrupt("bad")])
async def test_a_queue_that_went_during_a_sweep_leaves_nothing_behind(answer: Any) -> None:
    context = operating()

    def answers() -> Mapping[str, Any]:
        context.informers[QUEUES].remove({"metadata": metadata("orders")})
        return {DEAD: answer}

    await sweep.sweep_broker(context, ("shop", "broker"), line(answers))
    assert shown() == {}
    assert (context.observed.stats, context.observed.read_errors) == ({}, {})


async def test_a_new_queue_of_an_old_name_begins_with_nothing() -> None:
    context = operating(capacity={"maxLetters": 3})
    await swept(context, BoxStats(3, NOW))
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2", uid="another")})
    assert (context.observed.stats, context.observed.surveys) == ({}, {})


async def test_an_age_grows_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    context = operating()
    for later in (1_000, 61_000):
        monkeypatch.setattr(sweep, "now_ms", lambda later=later: NOW + later)
        await swept(context, BoxStats(1, NOW))
        assert shown()["dlq_oldest_letter_age_seconds"] == later / 1000
        assert shown()["dlq_oldest_letter_timestamp_seconds"] == NOW / 1000


async def test_no_reading_is_not_nought() -> None:
    context = operating(
        source={"name": "orders", "group": "billing"}, delivery={"http": {"url": "http://billing.example/"}}
    )
    for circuit, is_open in (("Closed", 0), ("Open", 1), ("HalfOpen", 1)):
        await swept(context, BoxStats(2, NOW, couriers=(WorkerStatus("pod", circuit=circuit, at=NOW),)))
        assert (shown()["dlq_letters"], shown()["dlq_queue_circuit_open"]) == (2, is_open)
    await swept(context, errors.BrokerUnreachable("away"))
    assert shown() == {"dlq_sweeps_failed_total": 1}


async def test_skipped_ledger_records_are_counted() -> None:
    context = operating()
    for skipped in (0, 2, 0, 3):
        await swept(context, BoxStats(1, NOW, skipped=skipped))
    assert shown()["dlq_ledger_records_skipped_total"] == 5
    metrics.remove_queue(*KEY)
    assert shown() == {}


async def test_letters_of_another_age_of_the_world_are_counted() -> None:
    context = operating()
    await swept(context, BoxStats(1, 2**64))
    assert shown()["dlq_letters"] == 1
    status = queue_status(plain_queue(), sweep.facts_from_stats(context, plain_queue(), BoxStats(1, 2**64)), None)
    assert status["oldestLetterTime"].startswith("9999-12-31")


@pytest.mark.parametrize(("spec", "at_once"), [({}, False), ({"alerts": {"depth": 1}}, True)])
async def test_numbers_wait_for_their_time_and_a_condition_does_not(spec: dict[str, Any], at_once: bool) -> None:
    context = operating(**spec)
    told = queue_status(
        plain_queue(**spec), sweep.facts_from_stats(context, plain_queue(**spec), BoxStats(0, None)), None
    )
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2"), "status": told})
    context.observed.stats[KEY] = BoxStats(0, None)
    context.workqueue = type(context.workqueue)()
    context.status_written_at[ORDERS] = time.monotonic()
    await swept(context, BoxStats(2, NOW))
    assert (len(context.workqueue) == 1) is at_once
    assert (ORDERS in context.workqueue._timers) is not at_once


async def test_what_only_a_reading_shows_stands_until_a_reading_succeeds() -> None:
    context = operating()
    await swept(context, errors.BoxRecreated("orders.dead: partition 0 was made anew"))
    found = boxes.sweep_finding(context, plain_queue())
    assert found is not None
    assert (found.reason, found.is_transient, KEY in context.observed.surveys) == ("BoxRecreated", False, True)
    context.workqueue = type(context.workqueue)()
    await swept(context, errors.BoxRecreated("orders.dead: partition 0 was made anew"))
    assert len(context.workqueue) == 0, "it was told already"
    await swept(context, BoxStats(0, None))
    assert boxes.sweep_finding(context, plain_queue()) is None
    assert len(context.workqueue) == 1


async def test_who_asks_for_a_box_hears_whatever_went_wrong() -> None:
    def breaks() -> Mapping[str, Any]:
        raise RuntimeError("of the driver's own")

    asked = PooledBroker(connection().spec, None, line(breaks).broker, None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        await asked.describe([DEAD])


async def test_a_box_that_we_may_not_describe_fails_only_those_who_asked_for_it() -> None:
    class Picky:
        async def describe(self, names: list[str]) -> Mapping[str, BoxState]:
            if "secret" in names:
                raise errors.NotAuthorised("secret: the broker does not allow it")
            return {name: BoxState(name) for name in names if name != "missing"}

    asked = PooledBroker(connection().spec, None, Picky(), None)  # type: ignore[arg-type]
    others = [f"box-{number}" for number in range(20)]
    answers = await asyncio.gather(
        asked.describe(others[:10]), asked.describe(["secret"]), asked.describe([*others[10:], "missing"]),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(answers[1], errors.NotAuthorised)
    assert [list(answers[0]), list(answers[2])] == [others[:10], others[10:]]  # type: ignore[arg-type]


async def test_one_pass_meets_a_broker_and_no_other_waits_for_it() -> None:
    context, broker = operating(), connection()
    context.workqueue = type(context.workqueue)()
    opened, silent = await context.pool.get_or_open(broker), asyncio.Event()
    opened.broker = SimpleNamespace(server=silent.wait)
    meeting = asyncio.create_task(context.pool.ensure_identified(broker))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await loop.reconcile_one(context, ORDERS)
    assert ORDERS in context.workqueue._timers, "it is looked at again soon"
    assert KEY in context.observed.surveys, "nothing was said or forgotten"
    meeting.cancel()
    await context.pool.close_all()


async def test_queues_of_a_broker_that_is_away_do_not_wait_for_it() -> None:
    def asked() -> Mapping[str, Any]:
        raise AssertionError("the connection's own pass asks")

    context, broker = operating(), connection()
    opened = await context.pool.get_or_open(broker)
    opened.broker, opened.last_error = line(asked).broker, errors.BrokerUnreachable("away")
    found = await boxes.ensure_boxes(context, plain_queue(), broker)
    blocked = await boxes.drop_boxes(context, plain_queue(), broker)
    assert found is not None
    assert blocked is not None
    assert (found.reason, blocked.reason) == ("BrokerUnreachable", "DeletionBlocked")
    await context.pool.close_all()


@pytest.mark.parametrize(("its", "taken"), [("one-cluster", True), ("another", False)])
async def test_an_owner_whose_broker_was_not_met_yet_is_met_before_a_younger_is_judged(its: str, taken: bool) -> None:
    """An operator that starts knows no cluster's id: the first pass must not take a box for free because of that."""
    context = operating()
    for kube, host, made in (("bank", "listener:9093", "2026-11-16"), ("shop", "k:9092", "2026-11-17")):
        head = {"namespace": kube, "resourceVersion": "3", "creationTimestamp": f"{made}T00:00:00Z", "uid": kube}
        broker = {"metadata": metadata("broker", **head), "spec": {"kafka": {"bootstrapServers": [host]}}}
        context.informers[CONNECTIONS].upsert(broker)
        context.informers[QUEUES].upsert({"metadata": metadata("orders", **head), "spec": plain_queue().spec.to_wire()})
        cluster = its if kube == "bank" else "one-cluster"
        opened = await context.pool.get_or_open(BrokerConnection.from_body(broker))
        opened.broker = SimpleNamespace(server=partial(answers, ServerInfo("Kafka", "4", 1, True, cluster)))
    younger = DeadLetterQueue.from_body(context.informers[QUEUES].get(*KEY) or {})
    _, found = await queue._check(context, younger, await gather_queue_facts(context, younger))
    assert (found.message if found else "") == (
        "orders.dead is already the dead box of a queue of another namespace. "
        "Set another spec.dead.name, or delete one of the two queues."
        if taken
        else ""
    )
    await context.pool.close_all()


async def answers(value: Any) -> Any:
    return value


async def test_an_operator_is_ready_when_everything_was_listed_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    context, now = operating(), time.monotonic()
    assert "not there yet" in health.readiness_problem(context, now)
    snapshots = SimpleNamespace(are_listed=True, oldest_list=0.0)
    monkeypatch.setattr(context, "snapshots", snapshots)
    assert "not listed for too long" in health.readiness_problem(context, now)
    snapshots.oldest_list = now  # the clock of the event loop is the same
    assert health.readiness_problem(context, now) == ""
    context.liveness.swept_at = now - 10_000
    assert "no sweep" in health.readiness_problem(context, now)


async def test_lost_letters_add_up_over_restarts_and_are_told_at_once() -> None:
    context = operating(source={"name": "orders", "group": "billing"}, delivery={"http": {"url": "http://b.example/"}})
    context.observed.stats[KEY] = BoxStats(0, None)
    status = {"lostParkedLetters": 4, "lostParkedLettersTime": "2026-11-15T00:00:00Z"}  # of another life
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2"), "status": status})
    await swept(context, BoxStats(0, None))
    assert shown()["dlq_queue_parked_letters_lost"] == 4
    context.workqueue = type(context.workqueue)()
    await swept(context, BoxStats(0, None, lost=3))
    await swept(context, BoxStats(0, None, lost=1))
    assert (context.observed.losses[KEY].letters, len(context.workqueue)) == (8, 1)
    assert shown()["dlq_queue_parked_letters_lost"] == 8
    assert shown()["dlq_queue_parked_letters_lost_timestamp_seconds"] == context.observed.losses[KEY].at / 1000
