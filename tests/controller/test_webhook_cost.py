"""What a review by the webhook costs the operator, whoever asks for it."""

import time
from typing import Any

from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.queue import validate
from deadletter.kube import CONNECTIONS, QUEUES
from deadletter.settings import Settings

MOST_SECONDS = 1.0


def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1", "generation": 1}
    return {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


async def test_a_queue_with_as_many_and_as_long_routes_as_the_schema_takes_is_judged_at_once() -> None:
    context = OperatorContext(Settings(), None)  # type: ignore[arg-type]
    connection = {"kafka": {"bootstrapServers": ["kafka.infra.svc:9092"]}}
    context.informers[CONNECTIONS].upsert(body(CONNECTIONS.kind, "broker", connection))
    routes = [{"match": "true&&" * 160 + "true" + " " * at, "queueRef": {"name": "other"}} for at in range(16)]
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": "orders.dlq"}, "routes": routes}
    before = time.process_time()
    found = await validate(context, body(QUEUES.kind, "orders", spec))
    assert time.process_time() - before < MOST_SECONDS
    assert [one.message for one in found] == ["DeadLetterQueue other does not exist; create it first."]
