"""What a sweep stores and exports, and which objects it puts into the work queue."""

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter import metrics
from deadletter.brokers import errors
from deadletter.controller import depth_sweep
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.boxes import sweep_finding
from deadletter.core.box_types import BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.kube import QUEUES
from deadletter.plan.queue_status import queue_status
from tests.controller.contexts import DEAD, KEY, ORDERS, empty_workqueue, fake_pooled_broker, make_context
from tests.plan.builders import NOW, metadata, plain_queue


async def sweep_with(context: OperatorContext, result: Any) -> None:
    await depth_sweep.sweep_broker(context, ("shop", "broker"), fake_pooled_broker(lambda: {DEAD: result}))


def exported_series() -> dict[str, float]:
    """Return every exported series of the queue by metric name."""
    return {
        sample.name: sample.value
        for metric in (*metrics.QUEUE_METRICS, *metrics.EXTRA_LABEL_METRICS)
        for sample in metric.collect()[0].samples
        if sample.labels.get("queue") == "orders" and not sample.name.endswith("_created")
    }


@pytest.fixture(autouse=True)
def _remove_metrics() -> None:
    metrics.remove_queue(*KEY)


@pytest.mark.parametrize("result", [BoxStats(3, NOW), errors.BrokerUnreachable("away"), errors.LedgerCorrupt("bad")])
async def test_nothing_is_kept_of_a_queue_that_was_deleted_during_the_sweep(result: Any) -> None:
    context = make_context()

    def delete_then_return() -> Mapping[str, Any]:
        context.informers[QUEUES].remove({"metadata": metadata("orders")})
        return {DEAD: result}

    await depth_sweep.sweep_broker(context, ("shop", "broker"), fake_pooled_broker(delete_then_return))
    assert exported_series() == {}
    assert (context.observed.stats, context.observed.read_errors) == ({}, {})


async def test_a_queue_that_was_created_again_inherits_nothing() -> None:
    context = make_context(capacity={"maxLetters": 3})
    await sweep_with(context, BoxStats(3, NOW))
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2", uid="another")})
    assert (context.observed.stats, context.observed.surveys) == ({}, {})


async def test_the_age_of_the_oldest_letter_grows_without_new_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context()
    for later in (1_000, 61_000):
        monkeypatch.setattr(depth_sweep, "now_ms", lambda later=later: NOW + later)
        await sweep_with(context, BoxStats(1, NOW))
        assert exported_series()["dlq_oldest_letter_age_seconds"] == later / 1000
        assert exported_series()["dlq_oldest_letter_timestamp_seconds"] == NOW / 1000


async def test_metrics_are_removed_and_not_zero_when_a_box_cannot_be_read() -> None:
    context = make_context(
        source={"name": "orders", "group": "billing"}, delivery={"http": {"url": "http://billing.example/"}}
    )
    for circuit, is_open in (("Closed", 0), ("Open", 1), ("HalfOpen", 1)):
        await sweep_with(context, BoxStats(2, NOW, couriers=(WorkerStatus("pod", circuit=circuit, at=NOW),)))
        assert (exported_series()["dlq_letters"], exported_series()["dlq_queue_circuit_open"]) == (2, is_open)
    await sweep_with(context, errors.BrokerUnreachable("away"))
    assert exported_series() == {"dlq_sweeps_failed_total": 1}


async def test_skipped_ledger_records_are_counted() -> None:
    context = make_context()
    for skipped in (0, 2, 0, 3):
        await sweep_with(context, BoxStats(1, NOW, skipped=skipped))
    assert exported_series()["dlq_ledger_records_skipped_total"] == 5
    metrics.remove_queue(*KEY)
    assert exported_series() == {}


async def test_a_letter_with_a_time_in_the_far_future_is_counted() -> None:
    context = make_context()
    await sweep_with(context, BoxStats(1, 2**64))
    assert exported_series()["dlq_letters"] == 1
    status = queue_status(plain_queue(), depth_sweep.facts_from_stats(context, plain_queue(), BoxStats(1, 2**64)), None)
    assert status["oldestLetterTime"].startswith("9999-12-31")


@pytest.mark.parametrize(("spec", "at_once"), [({}, False), ({"alerts": {"depth": 1}}, True)])
async def test_new_numbers_are_delayed_and_a_changed_condition_is_not(spec: dict[str, Any], at_once: bool) -> None:
    context = make_context(**spec)
    status = queue_status(
        plain_queue(**spec), depth_sweep.facts_from_stats(context, plain_queue(**spec), BoxStats(0, None)), None
    )
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2"), "status": status})
    context.observed.stats[KEY] = BoxStats(0, None)
    empty_workqueue(context)
    context.status_written_at[ORDERS] = time.monotonic()
    await sweep_with(context, BoxStats(2, NOW))
    assert (len(context.workqueue) == 1) is at_once
    assert (ORDERS in context.workqueue._timers) is not at_once


async def test_a_read_error_is_reported_until_the_box_can_be_read() -> None:
    context = make_context()
    await sweep_with(context, errors.BoxRecreated("orders.dead: partition 0 was deleted and created again"))
    found = sweep_finding(context, plain_queue())
    assert found is not None
    assert (found.reason, found.is_transient, KEY in context.observed.surveys) == ("BoxRecreated", False, True)
    empty_workqueue(context)
    await sweep_with(context, errors.BoxRecreated("orders.dead: partition 0 was deleted and created again"))
    assert len(context.workqueue) == 0, "it was reported already"
    await sweep_with(context, BoxStats(0, None))
    assert sweep_finding(context, plain_queue()) is None
    assert len(context.workqueue) == 1


async def test_lost_letters_add_up_over_restarts_and_are_reported_at_once() -> None:
    context = make_context(
        source={"name": "orders", "group": "billing"}, delivery={"http": {"url": "http://b.example/"}}
    )
    context.observed.stats[KEY] = BoxStats(0, None)
    status = {"lostParkedLetters": 4, "lostParkedLettersTime": "2026-11-15T00:00:00Z"}  # from before a restart
    body = context.informers[QUEUES].get(*KEY) or {}
    context.informers[QUEUES].upsert({**body, "metadata": metadata("orders", resourceVersion="2"), "status": status})
    await sweep_with(context, BoxStats(0, None))
    assert exported_series()["dlq_queue_parked_letters_lost"] == 4
    empty_workqueue(context)
    await sweep_with(context, BoxStats(0, None, lost=3))
    await sweep_with(context, BoxStats(0, None, lost=1))
    assert (context.observed.losses[KEY].letters, len(context.workqueue)) == (8, 1)
    assert exported_series()["dlq_queue_parked_letters_lost"] == 8
    assert (
        exported_series()["dlq_queue_parked_letters_lost_timestamp_seconds"] == context.observed.losses[KEY].at / 1000
    )


async def test_a_broker_that_does_not_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: dict[str, int] = {"silent": 0, "healthy": 0}

    async def sweep_broker(_: Any, key: str, __: Any) -> None:
        sweeps[key] += 1
        if key == "silent":
            await asyncio.Event().wait()

    monkeypatch.setattr(depth_sweep, "sweep_broker", sweep_broker)
    context: Any = SimpleNamespace(
        pool=SimpleNamespace(list_open=lambda: [("silent", None), ("healthy", None)]),
        settings=SimpleNamespace(sweep_seconds=0.01),
        liveness=SimpleNamespace(swept_at=0.0),
    )
    task = asyncio.create_task(depth_sweep.sweep_forever(context))
    async with asyncio.timeout(60):
        while sweeps["healthy"] < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sweeps["silent"] == 1
