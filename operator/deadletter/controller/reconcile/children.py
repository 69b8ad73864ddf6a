"""Children are applied, never created if absent; one that is already as it should be costs no request."""

from collections.abc import Iterable
from typing import Any

import orjson

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import Operation
from deadletter.controller.reconcile.facts import confirm
from deadletter.controller.state.dependents import OWNER
from deadletter.core.reasons import Reason
from deadletter.kube import CHILDREN, RESOURCES, ApiError, Body
from deadletter.plan.findings import COURIER, Finding


def project(live: Any, wanted: Any) -> Any:
    """Of what is there only what we ask for; lists are compared whole."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {key: project(live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and len(live) == len(wanted):
        return [project(one, other) for one, other in zip(live, wanted, strict=True)]
    return live


def _bare(manifest: Body) -> Body:
    return {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}


async def keep(operation: Operation, manifests: Iterable[Body]) -> Finding | None:
    """Bring these children into being or back; what the API server objects to is a finding."""
    for manifest in manifests:
        try:
            await keep_one(operation, manifest)
        except ApiError as error:
            if error.status in (0, 409, 429) or error.status >= 500:
                raise
            return Finding(Reason.ApplyRefused, f"{manifest['kind']}: {error.message}", True, COURIER)
    return None


async def keep_one(operation: Operation, manifest: Body) -> Body:
    """Apply one child, unless it is in place."""
    resource, meta = RESOURCES[manifest["kind"]], manifest["metadata"]
    key = (resource.plural, meta["namespace"], meta["name"])
    live = operation.snapshots[resource].get(meta["namespace"], meta["name"])
    text = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS).decode()
    if live is not None and _in_place(live, _bare(manifest), operation.applied.get(key), text):
        return live
    written = await operation.cluster.apply(manifest)
    # The server may write a quantity or a default in its own way: what it made of our words is what we expect to see.
    operation.applied[key] = (text, project(written, _bare(manifest)))
    operation.snapshots[resource].take(written)
    return written


def _in_place(live: Body, wanted: Body, applied: tuple[str, Any] | None, text: str) -> bool:
    seen = project(live, wanted)
    return bool(seen == wanted or (applied is not None and applied[0] == text and applied[1] == seen))


async def prune(operation: Operation, queue: DeadLetterQueue, wanted: Iterable[Body]) -> None:
    """Delete children of this queue that are wanted no more."""
    kept = {(one["kind"], one["metadata"]["name"]) for one in wanted}
    doomed = [
        (resource, body["metadata"])
        for resource in CHILDREN
        if resource in operation.snapshots
        for body in operation.snapshots[resource].by(OWNER, queue.uid)
        if (resource.kind, body["metadata"]["name"]) not in kept
    ]
    if doomed:
        await confirm(operation, queue)
    for resource, meta in doomed:
        await operation.cluster.delete(resource, queue.namespace, meta["name"], meta["uid"])
