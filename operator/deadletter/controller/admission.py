"""The webhook: a courtesy that judges by the same checks as the reconcile, from the same snapshots.

It asks nobody, so it answers at once. What the schema refuses it leaves to the schema's words; an update that leaves
the spec as it was, or of an object that is being deleted, is always allowed.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import Operation
from deadletter.controller.kopf_watch import GROUP, VERSION
from deadletter.controller.reconcile.facts import gather_queue, read
from deadletter.controller.reconcile.replay import gather_replay
from deadletter.controller.state.dependents import BROKER, POLICY, ROUTES, named
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.findings import Finding, every
from deadletter.plan.queue_checks import GRAPH_CHECKS, rules_compile
from deadletter.plan.replays import REPLAY_CHECKS

Judge = Callable[[Operation, Body], Awaitable[list[Finding]]]
REFUSED = 422
IN_USE = 409
NAMED = 5
RENEWED_SECONDS = 10.0  # between two looks whether the certificate was renewed
INDEX = {CONNECTIONS: BROKER, POLICIES: POLICY, QUEUES: ROUTES}


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, running: Operation) -> None:
    """Serve the four webhooks, when there are certificates to serve them with."""
    folder = running.settings.webhook_certificates
    if folder is None:
        return
    settings.admission.server = kopf.WebhookServer(
        port=running.settings.webhook_port,
        certfile=folder / "tls.crt",
        pkeyfile=folder / "tls.key",
        file_check_interval=RENEWED_SECONDS,
    )
    settings.admission.managed = None  # the chart owns the configuration
    _serve(registry, running, QUEUES, "queues", judge_queue)
    _serve(registry, running, POLICIES, "policies", judge_policy)
    _serve(registry, running, CONNECTIONS, "connections", judge_nothing)
    _serve(registry, running, REPLAYS, "replays", judge_replay)


def _serve(registry: kopf.OperatorRegistry, running: Operation, resource: Resource, name: str, judge: Judge) -> None:
    @kopf.on.validate(GROUP, VERSION, resource.plural, id=name, registry=registry)
    async def review(warnings: list[str], **said: Any) -> None:
        operation, old, new = said["operation"], said["old"], said["new"]
        if operation == "DELETE":
            _leave(running, resource, plain(old), warnings)
        elif new is not None and not _is_left_alone(old, new):
            body = plain(new)
            if operation == "CREATE":
                body["metadata"].pop("creationTimestamp", None)  # of two in one second the new one is the younger
            _say(running, await judge(running, body), warnings)


def plain(body: Mapping[str, Any] | None) -> Body:
    """Kopf's view of a body as a plain one."""
    copy = dict(body or {})
    copy["metadata"] = dict(copy.get("metadata") or {})
    return copy


def _is_left_alone(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    going = bool((new.get("metadata") or {}).get("deletionTimestamp"))
    return going or (old is not None and old.get("spec") == new.get("spec"))


async def judge_queue(running: Operation, body: Body) -> list[Finding]:
    """The graph of references."""
    queue = read(DeadLetterQueue, body)
    return every(GRAPH_CHECKS, queue, await gather_queue(running, queue, confirm=False)) if queue else []


async def judge_policy(_: Operation, body: Body) -> list[Finding]:
    """Every rule's expression."""
    policy = read(RetryPolicy, body)
    found = rules_compile(policy) if policy else None
    return [found] if found else []


async def judge_nothing(_: Operation, __: Body) -> list[Finding]:
    """The schema has said all there is to say."""
    return []


async def judge_replay(running: Operation, body: Body) -> list[Finding]:
    """The selection's expression and what it names."""
    replay = read(Replay, body)
    return every(REPLAY_CHECKS, replay, await gather_replay(running, replay, confirm=False)) if replay else []


def _say(running: Operation, found: list[Finding], warnings: list[str]) -> None:
    for one in found:
        if not one.heals or (one.missing and running.settings.webhook_missing_references == "Deny"):
            raise kopf.AdmissionError(one.message, code=REFUSED)
        if one.missing:
            warnings.append(one.message)


def _leave(running: Operation, resource: Resource, body: Body, warnings: list[str]) -> None:
    """Something that others name is deleted."""
    using = sorted(users(running, resource, body["metadata"]["namespace"], body["metadata"]["name"]))
    if not using:
        return
    more = f" and {len(using) - NAMED} more" if len(using) > NAMED else ""
    sentence = f"{resource.kind} {body['metadata']['name']} is still used by {', '.join(using[:NAMED])}{more}."
    if running.settings.webhook_delete_in_use == "Deny":
        raise kopf.AdmissionError(sentence, code=IN_USE)
    warnings.append(sentence)


def users(running: Operation, resource: Resource, namespace: str, name: str) -> Iterator[str]:
    """Who names it and stays, as `Kind name`; a Replay that ended needs nothing more."""
    bodies = [*running.snapshots[QUEUES].by(INDEX[resource], namespace, name)] if resource in INDEX else []
    if resource is QUEUES:
        replays = running.snapshots[REPLAYS].all(namespace)
        bodies += [body for body in replays if name in queues_of(body) and "completionTime" not in status_of(body)]
    for body in bodies:
        if not body["metadata"].get("deletionTimestamp"):
            yield f"{body['kind']} {body['metadata']['name']}"


def queues_of(replay: Body) -> set[str]:
    """The queues that a Replay names: whose letters go, and where to."""
    return {named(replay, "queueRef"), named({"spec": replay["spec"].get("to") or {}}, "queueRef")}


def status_of(body: Body) -> Body:
    """What we said about it, if anything."""
    return body.get("status") or {}
