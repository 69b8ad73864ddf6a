"""Broker pool: shared describe requests, and passes that do not wait for a broker that does not answer."""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.api.broker_connections import BrokerConnection, BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers import errors
from deadletter.brokers.types import BoxState, ServerInfo
from deadletter.controller.reconcile import boxes, loop, queue
from deadletter.controller.reconcile.facts import gather_queue_facts
from deadletter.controller.state.broker_pool import PooledBroker, broker_identities
from deadletter.kube import CONNECTIONS, QUEUES
from tests.controller.contexts import (
    DEAD,
    KEY,
    ORDERS,
    empty_workqueue,
    fake_pooled_broker,
    make_context,
    returning,
)
from tests.plan.builders import connection, metadata, plain_queue


async def test_an_unexpected_error_of_a_describe_reaches_the_caller() -> None:
    def fail() -> Mapping[str, Any]:
        raise RuntimeError("an error of the driver")

    pooled = PooledBroker(connection().spec, None, fake_pooled_broker(fail).broker, None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        await pooled.describe([DEAD])


async def test_an_unauthorised_box_fails_only_the_callers_that_asked_for_it() -> None:
    class OneUnauthorised:
        async def describe(self, names: list[str]) -> Mapping[str, BoxState]:
            if "secret" in names:
                raise errors.NotAuthorised("secret: the broker does not allow it")
            return {name: BoxState(name) for name in names if name != "missing"}

    pooled = PooledBroker(connection().spec, None, OneUnauthorised(), None)  # type: ignore[arg-type]
    others = [f"box-{number}" for number in range(20)]
    results = await asyncio.gather(
        pooled.describe(others[:10]), pooled.describe(["secret"]), pooled.describe([*others[10:], "missing"]),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(results[1], errors.NotAuthorised)
    assert [list(results[0]), list(results[2])] == [others[:10], others[10:]]  # type: ignore[arg-type]


async def test_one_pass_probes_a_broker_and_no_other_waits_for_it() -> None:
    context, broker = make_context(), connection()
    empty_workqueue(context)
    pooled, silent = await context.pool.get_or_open(broker), asyncio.Event()
    pooled.broker = SimpleNamespace(server_info=silent.wait)  # type: ignore[assignment]
    probe = asyncio.create_task(context.pool.ensure_identified(broker))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await loop.reconcile_one(context, ORDERS)
    assert ORDERS in context.workqueue._timers, "it is reconciled again soon"
    assert KEY in context.observed.surveys, "nothing was reported or forgotten"
    probe.cancel()
    await context.pool.close_all()


async def test_queues_of_an_unreachable_broker_make_no_request_to_it() -> None:
    def fail() -> Mapping[str, Any]:
        raise AssertionError("only the connection's own pass may ask the broker")

    context, broker = make_context(), connection()
    pooled = await context.pool.get_or_open(broker)
    pooled.broker, pooled.last_error = fake_pooled_broker(fail).broker, errors.BrokerUnreachable("away")
    found = await boxes.ensure_boxes(context, plain_queue(), broker)
    blocked = await boxes.delete_boxes(context, plain_queue(), broker)
    assert found is not None
    assert blocked is not None
    assert (found.reason, blocked.reason) == ("BrokerUnreachable", "DeletionBlocked")
    await context.pool.close_all()


@pytest.mark.parametrize(("cluster_of_owner", "is_conflict"), [("one-cluster", True), ("another", False)])
async def test_the_broker_of_an_older_queue_is_identified_before_a_younger_one_may_use_the_box(
    cluster_of_owner: str, is_conflict: bool
) -> None:
    """An operator that has just started knows no cluster id; the first pass must not take the box for free then."""
    context = make_context()
    for namespace, host, day in (("bank", "listener:9093", "2026-11-16"), ("shop", "k:9092", "2026-11-17")):
        created = f"{day}T00:00:00Z"
        head = {"namespace": namespace, "resourceVersion": "3", "creationTimestamp": created, "uid": namespace}
        broker = {"metadata": metadata("broker", **head), "spec": {"kafka": {"bootstrapServers": [host]}}}
        context.informers[CONNECTIONS].upsert(broker)
        context.informers[QUEUES].upsert({"metadata": metadata("orders", **head), "spec": plain_queue().spec.to_wire()})
        server = ServerInfo("Kafka", "4", 1, True, cluster_of_owner if namespace == "bank" else "one-cluster")
        pooled = await context.pool.get_or_open(BrokerConnection.from_body(broker))
        pooled.broker = SimpleNamespace(server_info=partial(returning, server))  # type: ignore[assignment]
    younger = DeadLetterQueue.from_body(context.informers[QUEUES].get(*KEY) or {})
    _, found = await queue._check(context, younger, await gather_queue_facts(context, younger))
    assert (found.message if found else "") == (
        "orders.dead is already the dead box of a queue of another namespace. "
        "Set another spec.dead.name, or delete one of the two queues."
        if is_conflict
        else ""
    )
    await context.pool.close_all()


def test_the_sentinels_and_the_database_identify_a_redis_and_the_host_of_its_url_does_not() -> None:
    def identities(name: str, url: str, *nodes: str) -> frozenset[str]:
        redis = {"url": url, "mode": "Sentinel", "sentinel": {"masterName": name, "nodes": nodes}}
        return broker_identities(BrokerConnectionSpec.model_validate({"redis": redis}), None)

    one = identities("orders", "redis://primary/0", "s-0:26379", "s-1:26379")
    assert one == identities("orders", "redis://other", "s-1:26379", "s-0:26379")
    assert not one & identities("billing", "redis://primary/0", "s-0:26379", "s-1:26379")
    assert not one & identities("orders", "redis://primary/1", "s-0:26379", "s-1:26379")


def test_the_logins_of_servers_and_sentinels_are_secrets_of_the_connection() -> None:
    sentinel = {"masterName": "orders", "nodes": ["s-0:26379"], "secretRef": {"name": "watch"}}
    redis = {"url": "redis://primary", "mode": "Sentinel", "sentinel": sentinel, "secretRef": {"name": "login"}}
    spec = BrokerConnectionSpec.model_validate({"redis": redis})
    assert spec.secret_names == ("login", "watch")
