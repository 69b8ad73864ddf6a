"""Reconcile a Replay: gather facts, check, apply its Job, write the status, and delete it when its TTL is over."""

from dataclasses import replace

from deadletter import metrics
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile.children import apply_children
from deadletter.controller.reconcile.facts import find_object, parse, services_exist
from deadletter.controller.reconcile.pods import container_exits, pods_of_job, waiting_reason
from deadletter.controller.reconcile.replay_order import is_runnable, replay_ahead_of
from deadletter.controller.reconcile.status import write_status
from deadletter.core import names, times
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, JOBS, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.common_manifests import ASSIGNMENT_KEY
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import Finding, all_findings, first_finding
from deadletter.plan.queue_checks import route_targets
from deadletter.plan.replay_checks import REPLAY_CHECKS
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.replay_status import is_finished, replay_status
from deadletter.wall_clock import now_ms

RESULTS = ("matched", "replayed", "archived", "discarded", "skipped", "failedAgain")
EXPIRY_SLACK_S = 0.5


async def reconcile(context: OperatorContext, key: ObjectKey, replay: Replay, body: Body) -> bool:
    """Run one pass; True if the Replay should be reconciled again soon."""
    if replay.metadata.deletion_timestamp:
        return False
    if is_finished(replay):
        export_metrics(replay, body.get("status") or {})
        await _delete_if_expired(context, key, replay)
        return False
    facts = await gather_replay_facts(context, replay)
    facts = await _add_pod_facts(context, facts)
    found = None if facts.assignment else first_finding(REPLAY_CHECKS, replay, facts)
    if found is None and facts.queue is not None and facts.connection is not None:
        may_start = bool(facts.assignment) or is_runnable(body)
        is_held = replay.spec.suspend or facts.blocking_replay is not None or not may_start
        if facts.job is not None or not is_held:
            found = await apply_children(context, plan_replay(replay, facts, context.workers, is_held))
        facts = replace(facts, job=_child(context, JOBS, replay))
    status = replay_status(replay, facts, found)
    await write_status(context, key, replay, body, status)
    export_metrics(replay, status)
    return "completionTime" not in status and (found is None or found.is_transient)


async def gather_replay_facts(context: OperatorContext, replay: Replay, confirm_missing: bool = True) -> ReplayFacts:
    """Gather what a Replay's checks and status depend on, except its pods.

    The webhook sets `confirm_missing` to False: it makes no request.
    """
    namespace, to = replay.namespace, replay.spec.to
    queue = await _queue(context, namespace, replay.spec.queue_ref.name, confirm_missing)
    preview = target = None
    if replay.spec.preview_ref is not None:
        name = replay.spec.preview_ref.name
        preview = await find_object(context, Replay, REPLAYS, namespace, name, confirm_missing)
    if to is not None and to.queue_ref is not None:
        target = await _queue(context, namespace, to.queue_ref.name, confirm_missing)
    services = [to.service_ref.name] if confirm_missing and to is not None and to.service_ref is not None else []
    stats = context.observed.stats.get((namespace, replay.spec.queue_ref.name))
    return ReplayFacts(
        queue=queue,
        connection=await _connection(context, queue, confirm_missing),
        preview=preview,
        target=target,
        target_connection=await _connection(context, target, confirm_missing),
        route_boxes=await _route_target_boxes(context, target or queue, confirm_missing),
        services=await services_exist(context, namespace, services),
        blocking_replay=replay_ahead_of(context, replay),
        progress=stats.progress.get(replay.uid, ()) if stats else (),
        job=_child(context, JOBS, replay),
        assignment=_stored_assignment(context, replay),
        now=now_ms(),
    )


async def _route_target_boxes(
    context: OperatorContext, queue: DeadLetterQueue | None, confirm_missing: bool
) -> tuple[str, ...]:
    connection = await _connection(context, queue, confirm_missing)
    if queue is None or connection is None:
        return ()
    targets = [await _queue(context, queue.namespace, name, confirm_missing) for name in route_targets(queue)]
    return tuple(target.boxes(connection.spec.is_redis).dead for target in targets if target)


async def _queue(context: OperatorContext, namespace: str, name: str, confirm_missing: bool) -> DeadLetterQueue | None:
    return await find_object(context, DeadLetterQueue, QUEUES, namespace, name, confirm_missing)


async def _connection(
    context: OperatorContext, queue: DeadLetterQueue | None, confirm_missing: bool
) -> BrokerConnection | None:
    if queue is None:
        return None
    name = queue.spec.broker_ref.name
    return await find_object(context, BrokerConnection, CONNECTIONS, queue.namespace, name, confirm_missing)


def _child(context: OperatorContext, resource: Resource, replay: Replay) -> Body | None:
    """Return the child of this Replay, not one of a deleted predecessor with the same name."""
    body = context.informers[resource].get(replay.namespace, names.child_name(replay.name, "replay"))
    owners = body["metadata"].get("ownerReferences", ()) if body else ()
    return body if any(owner["uid"] == replay.uid for owner in owners) else None


def _stored_assignment(context: OperatorContext, replay: Replay) -> str:
    config = _child(context, CONFIG_MAPS, replay) or {}
    return str((config.get("data") or {}).get(ASSIGNMENT_KEY, ""))


async def _add_pod_facts(context: OperatorContext, facts: ReplayFacts) -> ReplayFacts:
    """Return the facts with the state of the Job's pods, which are listed only if one ended or does not start."""
    status = (facts.job or {}).get("status") or {}
    has_ended = status.get("failed") or status.get("conditions")
    is_starting = status.get("active") and not status.get("ready")
    if facts.job is None or not (has_ended or is_starting):
        return facts
    pods = await pods_of_job(context, facts.job)
    return replace(facts, pod_exits=container_exits(pods), pod_problem=waiting_reason(pods) if is_starting else "")


async def _delete_if_expired(context: OperatorContext, key: ObjectKey, replay: Replay) -> None:
    """Delete a finished Replay when its TTL is over, or come back then."""
    ttl = replay.spec.ttl_seconds_after_finished
    if ttl is None or replay.status.completion_time is None:
        return
    left_ms = times.parse(replay.status.completion_time) + ttl * 1000 - now_ms()
    if left_ms > 0:
        context.workqueue.add_after(key, left_ms / 1000 + EXPIRY_SLACK_S)
    else:
        await context.kube.delete(REPLAYS, replay.namespace, replay.name, replay.uid)


def export_metrics(replay: Replay, status: Body) -> None:
    """Set the gauges of a Replay from its status."""
    labels = (replay.namespace, replay.name, replay.spec.queue_ref.name)
    for result in RESULTS:
        metrics.REPLAY_LETTERS.labels(*labels, result).set(status.get(result) or 0)
    total = sum(span["end"] - span["start"] for span in status.get("window") or ())
    progress = 1.0 if status.get("completionTime") else 1 - (status.get("remaining") or 0) / total if total else 0.0
    metrics.REPLAY_PROGRESS.labels(*labels).set(progress)
    conditions = status.get("conditions") or ()
    has_failed = any(one["type"] == "Succeeded" and one["status"] == "False" for one in conditions)
    metrics.REPLAY_FAILED.labels(*labels).set(has_failed)


async def validate(context: OperatorContext, body: Body) -> list[Finding]:
    """Run the checks of the webhook: those that need no request."""
    replay = parse(Replay, body)
    if replay is None:
        return []
    return all_findings(REPLAY_CHECKS, replay, await gather_replay_facts(context, replay, confirm_missing=False))
