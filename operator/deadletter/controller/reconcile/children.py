"""Children are applied, never created if absent; one that is already as it should be costs no request."""

from collections.abc import Iterable
from typing import Any

import orjson

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.facts import confirm_current
from deadletter.controller.state.dependents import BY_OWNER_UID
from deadletter.core.condition_types import COURIER_AVAILABLE
from deadletter.core.reasons import Reason
from deadletter.kube import CHILDREN, RESOURCES, ApiError, Body
from deadletter.plan.findings import Finding


def project(live: Any, wanted: Any) -> Any:
    """Of what is there only what we ask for; lists are compared whole."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {key: project(live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and len(live) == len(wanted):
        return [project(one, other) for one, other in zip(live, wanted, strict=True)]
    return live


def _without_type(manifest: Body) -> Body:
    return {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}


async def apply_children(context: OperatorContext, manifests: Iterable[Body]) -> Finding | None:
    """Bring these children into being or back; what the API server objects to is a finding."""
    for manifest in manifests:
        try:
            await apply_child(context, manifest)
        except ApiError as error:
            if error.status in (0, 409, 429) or error.status >= 500:
                raise
            return Finding(Reason.ApplyRefused, f"{manifest['kind']}: {error.message}", True, COURIER_AVAILABLE)
    return None


async def apply_child(context: OperatorContext, manifest: Body) -> Body:
    """Apply one child, unless it is in place."""
    resource, meta = RESOURCES[manifest["kind"]], manifest["metadata"]
    key = (resource.plural, meta["namespace"], meta["name"])
    live = context.informers[resource].get(meta["namespace"], meta["name"])
    text = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS).decode()
    if live is not None and _is_up_to_date(live, _without_type(manifest), context.applied_manifests.get(key), text):
        return live
    written = await context.kube.apply(manifest)
    # The server may write a quantity or a default in its own way: what it made of our words is what we expect to see.
    context.applied_manifests[key] = (text, project(written, _without_type(manifest)))
    context.informers[resource].upsert(written)
    return written


def _is_up_to_date(live: Body, wanted: Body, applied: tuple[str, Any] | None, text: str) -> bool:
    seen = project(live, wanted)
    return bool(seen == wanted or (applied is not None and applied[0] == text and applied[1] == seen))


async def prune_children(context: OperatorContext, queue: DeadLetterQueue, wanted: Iterable[Body]) -> None:
    """Delete children of this queue that are wanted no more."""
    kept = {(one["kind"], one["metadata"]["name"]) for one in wanted}
    doomed = [
        (resource, body["metadata"])
        for resource in CHILDREN
        if resource in context.informers
        for body in context.informers[resource].by_index(BY_OWNER_UID, queue.uid)
        if (resource.kind, body["metadata"]["name"]) not in kept
    ]
    if doomed:
        await confirm_current(context, queue)
    for resource, meta in doomed:
        await context.kube.delete(resource, queue.namespace, meta["name"], meta["uid"])
