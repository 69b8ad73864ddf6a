"""Namespaces that go, for an operator whose rights are Roles in them and go with them.

A namespace is marked five seconds before Kubernetes begins to delete what is in it. In that time our finalizers are
taken off, so that nothing of ours holds it; boxes that should be deleted and cannot be so soon stay.
"""

import asyncio

from deadletter.controller.context import FINALIZER, Operation, Thing
from deadletter.kube import NAMESPACES, QUEUES, ApiError

LOOK_SECONDS = 2.0


async def look_for_ever(operation: Operation) -> None:
    """Ask again and again for the namespaces that a finalizer of ours would hold, and for those that went."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for namespace in held(operation) | operation.going:
            if await goes(operation, namespace):
                operation.going.add(namespace)
                wake(operation, namespace)
            elif namespace in operation.going:  # another of its name: what is in it was left alone until now
                operation.going.discard(namespace)
                wake(operation, namespace)


def held(operation: Operation) -> set[str]:
    """Namespaces with a queue that carries our finalizer."""
    return {
        body["metadata"]["namespace"]
        for body in operation.snapshots[QUEUES].all()
        if FINALIZER in body["metadata"].get("finalizers", ())
    }


async def goes(operation: Operation, namespace: str) -> bool:
    """Is it marked, or gone? When nobody says, it stays as it was."""
    try:
        found = await operation.cluster.get(NAMESPACES, "", namespace)
    except ApiError:
        return namespace in operation.going
    return found is None or "deletionTimestamp" in found["metadata"]


def wake(operation: Operation, namespace: str) -> None:
    """Its queues are looked at now."""
    for body in operation.snapshots[QUEUES].all(namespace):
        operation.work.wake(Thing(QUEUES, namespace, body["metadata"]["name"]))
