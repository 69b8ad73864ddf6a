"""Namespaces that go, for an operator whose rights are Roles in them and go with them.

A namespace is marked five seconds before Kubernetes begins to delete what is in it. In that time our finalizers are
taken off, so that nothing of ours holds it; boxes that should be deleted and cannot be so soon stay.
"""

import asyncio

from deadletter.controller.context import FINALIZER, ObjectKey, OperatorContext
from deadletter.kube import NAMESPACES, QUEUES, ApiError

POLL_INTERVAL_S = 2.0


async def watch_forever(context: OperatorContext) -> None:
    """Ask again and again for the namespaces that a finalizer of ours would hold, and for those that went."""
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        for namespace in with_finalizer(context) | context.terminating_namespaces:
            if await is_terminating(context, namespace):
                context.terminating_namespaces.add(namespace)
                enqueue_queues(context, namespace)
            elif namespace in context.terminating_namespaces:  # another of its name: what is in it was left alone until now
                context.terminating_namespaces.discard(namespace)
                enqueue_queues(context, namespace)


def with_finalizer(context: OperatorContext) -> set[str]:
    """Namespaces with a queue that carries our finalizer."""
    return {
        body["metadata"]["namespace"]
        for body in context.informers[QUEUES].all()
        if FINALIZER in body["metadata"].get("finalizers", ())
    }


async def is_terminating(context: OperatorContext, namespace: str) -> bool:
    """Is it marked, or gone? When nobody says, it stays as it was."""
    try:
        found = await context.kube.get(NAMESPACES, "", namespace)
    except ApiError:
        return namespace in context.terminating_namespaces
    return found is None or "deletionTimestamp" in found["metadata"]


def enqueue_queues(context: OperatorContext, namespace: str) -> None:
    """Its queues are looked at now."""
    for body in context.informers[QUEUES].all(namespace):
        context.workqueue.add(ObjectKey(QUEUES, namespace, body["metadata"]["name"]))
