"""Release the finalizers in namespaces that are being deleted, for an operator with Roles, which are deleted with them.

Kubernetes marks a namespace five seconds before it begins to delete what is in it. In that time our finalizers must be
removed, because afterwards the operator has no rights to do so and the namespace would never go. Boxes that cannot be
deleted in that time stay on the broker.
"""

import asyncio

from deadletter.controller.context import FINALIZER, OperatorContext, object_key
from deadletter.kube import NAMESPACES, QUEUES, ApiError

POLL_INTERVAL_S = 2.0


async def watch_forever(context: OperatorContext) -> None:
    """Poll the namespaces that a finalizer of ours would block, and keep `context.terminating_namespaces` current."""
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        for namespace in with_finalizer(context) | context.terminating_namespaces:
            if await is_terminating(context, namespace):
                context.terminating_namespaces.add(namespace)
                enqueue_queues(context, namespace)
            elif namespace in context.terminating_namespaces:  # it was created again: reconcile what was left alone
                context.terminating_namespaces.discard(namespace)
                enqueue_queues(context, namespace)


def with_finalizer(context: OperatorContext) -> set[str]:
    """Return the namespaces with a queue that has our finalizer."""
    return {
        body["metadata"]["namespace"]
        for body in context.informers[QUEUES].all()
        if FINALIZER in body["metadata"].get("finalizers", ())
    }


async def is_terminating(context: OperatorContext, namespace: str) -> bool:
    """True if the namespace is marked for deletion or is gone; after an API error, the last known state."""
    try:
        found = await context.kube.get(NAMESPACES, "", namespace)
    except ApiError:
        return namespace in context.terminating_namespaces
    return found is None or "deletionTimestamp" in found["metadata"]


def enqueue_queues(context: OperatorContext, namespace: str) -> None:
    """Put the queues of a namespace into the work queue."""
    for body in context.informers[QUEUES].all(namespace):
        context.workqueue.add(object_key(QUEUES, body))
