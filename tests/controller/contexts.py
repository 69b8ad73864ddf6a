"""Build an OperatorContext without an API server and without a broker."""

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from deadletter.brokers.types import BoxState
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.state.observed_queues import BoxSurvey
from deadletter.kube import CONNECTIONS, QUEUES
from deadletter.settings import Settings
from tests.plan.builders import connection, metadata, plain_queue

KEY = ("shop", "orders")
ORDERS = ObjectKey(QUEUES, *KEY)
DEAD = "orders.dead"


def make_context(**spec: Any) -> OperatorContext:
    """Return a context with one queue, whose boxes a survey has found, and its connection."""
    context = OperatorContext(Settings(), SimpleNamespace())  # type: ignore[arg-type]
    for resource, model in ((CONNECTIONS, connection()), (QUEUES, plain_queue(**spec))):
        body = {"metadata": metadata(model.name, resourceVersion="1"), "spec": model.spec.to_wire()}
        context.informers[resource].upsert(body)
    context.observed.surveys[KEY] = BoxSurvey((), {DEAD: BoxState(DEAD, 1)}, time.monotonic())
    return context


def empty_workqueue(context: OperatorContext) -> None:
    """Replace the work queue by an empty one."""
    context.workqueue = type(context.workqueue)()


def fake_pooled_broker(result: Callable[[], Mapping[str, Any]]) -> Any:
    """Return a pooled broker whose sweep and describe return this result."""

    async def call(*_: Any) -> Mapping[str, Any]:
        return result()

    return SimpleNamespace(monitor=SimpleNamespace(sweep=call), broker=SimpleNamespace(describe=call))


async def returning(value: Any) -> Any:
    """Return the value, as an async method does."""
    return value
