"""The CPU time of a webhook review."""

import time
from typing import Any

from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.queue import validate
from deadletter.kube import CONNECTIONS, QUEUES
from deadletter.settings import Settings

MAX_CPU_S = 1.0


def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1", "generation": 1}
    return {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


async def test_the_largest_routes_that_the_schema_accepts_are_validated_within_a_second() -> None:
    context = OperatorContext(Settings(), None)  # type: ignore[arg-type]
    connection = {"kafka": {"bootstrapServers": ["kafka.infra.svc:9092"]}}
    context.informers[CONNECTIONS].upsert(body(CONNECTIONS.kind, "broker", connection))
    routes = [{"match": "true&&" * 160 + "true" + " " * at, "queueRef": {"name": "other"}} for at in range(16)]
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": "orders.dlq"}, "routes": routes}
    before = time.process_time()
    found = await validate(context, body(QUEUES.kind, "orders", spec))
    assert time.process_time() - before < MAX_CPU_S
    assert [one.message for one in found] == ["DeadLetterQueue other does not exist; create it first."]
