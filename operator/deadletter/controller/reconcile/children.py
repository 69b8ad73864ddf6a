"""Apply and prune the children of an object (Deployment, Job, ConfigMap, ...) with server-side apply.

A child that is as planned costs no request. Server-side apply also creates, so there is no separate create.
"""

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
    """Return the fields of a live object that the wanted one has; lists of another length are returned whole."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {key: project(live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and len(live) == len(wanted):
        return [project(one, other) for one, other in zip(live, wanted, strict=True)]
    return live


def _without_type(manifest: Body) -> Body:
    return {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}


async def apply_children(context: OperatorContext, manifests: Iterable[Body]) -> Finding | None:
    """Apply these children; a refusal by the API server becomes a finding, other errors are raised."""
    for manifest in manifests:
        try:
            await apply_child(context, manifest)
        except ApiError as error:
            if error.status in (0, 409, 429) or error.status >= 500:
                raise
            child = f"{manifest['kind']} {manifest['metadata']['name']}"
            message = f"The API server refuses {child}: {error.message}"
            return Finding(Reason.ApplyRefused, message, True, COURIER_AVAILABLE)
    return None


async def apply_child(context: OperatorContext, manifest: Body) -> Body:
    """Apply one child unless it is as planned, and return it."""
    resource, meta = RESOURCES[manifest["kind"]], manifest["metadata"]
    key = (resource.plural, meta["namespace"], meta["name"])
    live = context.informers[resource].get(meta["namespace"], meta["name"])
    text = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS).decode()
    wanted = _without_type(manifest)
    if live is not None and _is_up_to_date(live, wanted, context.applied_manifests.get(key), text):
        return live
    written = await context.kube.apply(manifest)
    # The server may write a quantity or a default in another form, so remember how it stored this manifest.
    context.applied_manifests[key] = (text, project(written, wanted))
    context.informers[resource].upsert(written)
    return written


def _is_up_to_date(live: Body, wanted: Body, applied: tuple[str, Any] | None, text: str) -> bool:
    projected = project(live, wanted)
    return bool(projected == wanted or (applied is not None and applied == (text, projected)))


async def prune_children(context: OperatorContext, queue: DeadLetterQueue, wanted: Iterable[Body]) -> None:
    """Delete the children of this queue that are not wanted any more."""
    wanted_names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    superfluous = [
        (resource, body["metadata"])
        for resource in CHILDREN
        if resource in context.informers
        for body in context.informers[resource].by_index(BY_OWNER_UID, queue.uid)
        if (resource.kind, body["metadata"]["name"]) not in wanted_names
    ]
    if superfluous:
        await confirm_current(context, queue)
    for resource, meta in superfluous:
        await context.kube.delete(resource, queue.namespace, meta["name"], meta["uid"])
