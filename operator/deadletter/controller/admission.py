"""Validating webhooks: they run the same checks as the reconcilers, on the informers' caches only.

No check makes a request, so a review takes no time to speak of. A violation of the schema is left to the API server's
own message. An update that keeps the spec, and any update of an object that is being deleted, is always allowed.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf

from deadletter.controller.context import OperatorContext
from deadletter.controller.kopf_watch import GROUP, VERSION
from deadletter.controller.reconcile import connection, policy, queue, replay
from deadletter.controller.state.dependents import BY_BROKER, BY_POLICY, BY_ROUTE_TARGET, ref_name
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.findings import Finding

Validate = Callable[[OperatorContext, Body], Awaitable[list[Finding]]]
UNPROCESSABLE_STATUS = 422
CONFLICT_STATUS = 409
MAX_LISTED_USERS = 5
CERTIFICATE_CHECK_INTERVAL_S = 10.0
USER_INDEXES = {CONNECTIONS: BY_BROKER, POLICIES: BY_POLICY, QUEUES: BY_ROUTE_TARGET}


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, context: OperatorContext) -> None:
    """Register a webhook for each kind, if the settings name a folder with a certificate."""
    folder = context.settings.webhook_certificates
    if folder is None:
        return
    settings.admission.server = kopf.WebhookServer(
        port=context.settings.webhook_port,
        certfile=folder / "tls.crt",
        pkeyfile=folder / "tls.key",
        file_check_interval=CERTIFICATE_CHECK_INTERVAL_S,
    )
    settings.admission.managed = None  # the chart owns the ValidatingWebhookConfiguration
    _register_webhook(registry, context, QUEUES, "queues", queue.validate)
    _register_webhook(registry, context, POLICIES, "policies", policy.validate)
    _register_webhook(registry, context, CONNECTIONS, "connections", connection.validate)
    _register_webhook(registry, context, REPLAYS, "replays", replay.validate)


def _register_webhook(
    registry: kopf.OperatorRegistry, context: OperatorContext, resource: Resource, name: str, validate: Validate
) -> None:
    @kopf.on.validate(GROUP, VERSION, resource.plural, id=name, registry=registry)
    async def review(warnings: list[str], **kwargs: Any) -> None:
        operation, old, new = kwargs["operation"], kwargs["old"], kwargs["new"]
        if operation == "DELETE":
            _review_deletion(context, resource, plain_body(old), warnings)
        elif new is not None and not _is_always_allowed(old, new):
            body = plain_body(new)
            if operation == "CREATE":
                # Without it the new object counts as younger than one that was created in the same second.
                body["metadata"].pop("creationTimestamp", None)
            _refuse_or_warn(context, await validate(context, body), warnings)


def plain_body(body: Mapping[str, Any] | None) -> Body:
    """Return kopf's view of a body as a plain dict."""
    copy = dict(body or {})
    copy["metadata"] = dict(copy.get("metadata") or {})
    return copy


def _is_always_allowed(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    is_deleted = bool((new.get("metadata") or {}).get("deletionTimestamp"))
    return is_deleted or (old is not None and old.get("spec") == new.get("spec"))


def _refuse_or_warn(context: OperatorContext, findings: list[Finding], warnings: list[str]) -> None:
    denies_missing = context.settings.webhook_missing_references == "Deny"
    for finding in findings:
        if not finding.is_transient or (finding.is_missing_reference and denies_missing):
            raise kopf.AdmissionError(finding.message, code=UNPROCESSABLE_STATUS)
        if finding.is_missing_reference:
            warnings.append(finding.message)


def _review_deletion(context: OperatorContext, resource: Resource, body: Body, warnings: list[str]) -> None:
    """Refuse to delete an object that others name, or warn, as the settings say."""
    meta = body["metadata"]
    users = sorted(users_of(context, resource, meta["namespace"], meta["name"]))
    if not users:
        return
    more = f" and {len(users) - MAX_LISTED_USERS} more" if len(users) > MAX_LISTED_USERS else ""
    message = f"{resource.kind} {meta['name']} is still used by {', '.join(users[:MAX_LISTED_USERS])}{more}."
    if context.settings.webhook_delete_in_use == "Deny":
        raise kopf.AdmissionError(message, code=CONFLICT_STATUS)
    warnings.append(message)


def users_of(context: OperatorContext, resource: Resource, namespace: str, name: str) -> Iterator[str]:
    """Yield `Kind name` of each object that names this one, except Replays that ended and objects being deleted."""
    bodies: list[Body] = []
    if resource in USER_INDEXES:
        bodies += context.informers[QUEUES].by_index(USER_INDEXES[resource], namespace, name)
    if resource is QUEUES:
        replays = context.informers[REPLAYS].all(namespace)
        bodies += [body for body in replays if name in referenced_queues(body) and not _has_ended(body)]
    for body in bodies:
        if not body["metadata"].get("deletionTimestamp"):
            yield f"{body['kind']} {body['metadata']['name']}"


def referenced_queues(body: Body) -> set[str]:
    """Return the names of a Replay's queue and of the queue it sends the letters to."""
    return {ref_name(body, "queueRef"), ref_name({"spec": body["spec"].get("to") or {}}, "queueRef")}


def _has_ended(body: Body) -> bool:
    return "completionTime" in (body.get("status") or {})
