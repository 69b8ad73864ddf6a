"""The webhook: a courtesy that judges by the same checks as the reconcile, from the same informers.

It asks nobody, so it answers at once. What the schema refuses it leaves to the schema's words; an update that leaves
the spec as it was, or of an object that is being deleted, is always allowed.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import OperatorContext
from deadletter.controller.kopf_watch import GROUP, VERSION
from deadletter.controller.reconcile.facts import gather_queue_facts, parse
from deadletter.controller.reconcile.replay import gather_replay_facts
from deadletter.controller.state.dependents import BY_BROKER, BY_POLICY, BY_ROUTE_TARGET, ref_name
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.findings import Finding, all_findings
from deadletter.plan.queue_checks import OBJECT_CHECKS, rules_compile
from deadletter.plan.replay_checks import REPLAY_CHECKS

Validate = Callable[[OperatorContext, Body], Awaitable[list[Finding]]]
UNPROCESSABLE_STATUS = 422
CONFLICT_STATUS = 409
MAX_LISTED_USERS = 5
CERTIFICATE_CHECK_INTERVAL_S = 10.0  # between two looks whether the certificate was renewed
USER_INDEXES = {CONNECTIONS: BY_BROKER, POLICIES: BY_POLICY, QUEUES: BY_ROUTE_TARGET}


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, context: OperatorContext) -> None:
    """Serve the four webhooks, when there are certificates to serve them with."""
    folder = context.settings.webhook_certificates
    if folder is None:
        return
    settings.admission.server = kopf.WebhookServer(
        port=context.settings.webhook_port,
        certfile=folder / "tls.crt",
        pkeyfile=folder / "tls.key",
        file_check_interval=CERTIFICATE_CHECK_INTERVAL_S,
    )
    settings.admission.managed = None  # the chart owns the configuration
    _register_webhook(registry, context, QUEUES, "queues", validate_queue)
    _register_webhook(registry, context, POLICIES, "policies", validate_policy)
    _register_webhook(registry, context, CONNECTIONS, "connections", accept)
    _register_webhook(registry, context, REPLAYS, "replays", validate_replay)


def _register_webhook(registry: kopf.OperatorRegistry, context: OperatorContext, resource: Resource, name: str, judge: Validate) -> None:
    @kopf.on.validate(GROUP, VERSION, resource.plural, id=name, registry=registry)
    async def review(warnings: list[str], **said: Any) -> None:
        operation, old, new = said["operation"], said["old"], said["new"]
        if operation == "DELETE":
            _review_deletion(context, resource, plain_body(old), warnings)
        elif new is not None and not _needs_no_review(old, new):
            body = plain_body(new)
            if operation == "CREATE":
                body["metadata"].pop("creationTimestamp", None)  # of two in one second the new one is the younger
            _refuse_or_warn(context, await judge(context, body), warnings)


def plain_body(body: Mapping[str, Any] | None) -> Body:
    """Kopf's view of a body as a plain one."""
    copy = dict(body or {})
    copy["metadata"] = dict(copy.get("metadata") or {})
    return copy


def _needs_no_review(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    going = bool((new.get("metadata") or {}).get("deletionTimestamp"))
    return going or (old is not None and old.get("spec") == new.get("spec"))


async def validate_queue(context: OperatorContext, body: Body) -> list[Finding]:
    """The graph of references."""
    queue = parse(DeadLetterQueue, body)
    return all_findings(OBJECT_CHECKS, queue, await gather_queue_facts(context, queue, confirm=False)) if queue else []


async def validate_policy(_: OperatorContext, body: Body) -> list[Finding]:
    """Every rule's expression."""
    policy = parse(RetryPolicy, body)
    found = rules_compile(policy) if policy else None
    return [found] if found else []


async def accept(_: OperatorContext, __: Body) -> list[Finding]:
    """The schema has said all there is to say."""
    return []


async def validate_replay(context: OperatorContext, body: Body) -> list[Finding]:
    """The selection's expression and what it names."""
    replay = parse(Replay, body)
    return all_findings(REPLAY_CHECKS, replay, await gather_replay_facts(context, replay, confirm=False)) if replay else []


def _refuse_or_warn(context: OperatorContext, found: list[Finding], warnings: list[str]) -> None:
    for one in found:
        if not one.is_transient or (one.is_missing_reference and context.settings.webhook_missing_references == "Deny"):
            raise kopf.AdmissionError(one.message, code=UNPROCESSABLE_STATUS)
        if one.is_missing_reference:
            warnings.append(one.message)


def _review_deletion(context: OperatorContext, resource: Resource, body: Body, warnings: list[str]) -> None:
    """Something that others name is deleted."""
    using = sorted(users_of(context, resource, body["metadata"]["namespace"], body["metadata"]["name"]))
    if not using:
        return
    more = f" and {len(using) - MAX_LISTED_USERS} more" if len(using) > MAX_LISTED_USERS else ""
    sentence = f"{resource.kind} {body['metadata']['name']} is still used by {', '.join(using[:MAX_LISTED_USERS])}{more}."
    if context.settings.webhook_delete_in_use == "Deny":
        raise kopf.AdmissionError(sentence, code=CONFLICT_STATUS)
    warnings.append(sentence)


def users_of(context: OperatorContext, resource: Resource, namespace: str, name: str) -> Iterator[str]:
    """Who names it and stays, as `Kind name`; a Replay that ended needs nothing more."""
    bodies = [*context.informers[QUEUES].by_index(USER_INDEXES[resource], namespace, name)] if resource in USER_INDEXES else []
    if resource is QUEUES:
        replays = context.informers[REPLAYS].all(namespace)
        bodies += [body for body in replays if name in referenced_queues(body) and "completionTime" not in stored_status(body)]
    for body in bodies:
        if not body["metadata"].get("deletionTimestamp"):
            yield f"{body['kind']} {body['metadata']['name']}"


def referenced_queues(replay: Body) -> set[str]:
    """The queues that a Replay names: whose letters go, and where to."""
    return {ref_name(replay, "queueRef"), ref_name({"spec": replay["spec"].get("to") or {}}, "queueRef")}


def stored_status(body: Body) -> Body:
    """What we said about it, if anything."""
    return body.get("status") or {}
