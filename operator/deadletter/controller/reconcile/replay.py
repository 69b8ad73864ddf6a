"""One pass over a Replay."""

from dataclasses import replace

from deadletter import metrics
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.clock import now_ms
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import children
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import find_object, services_exist
from deadletter.controller.reconcile.pods import container_exits, pods_of_job, waiting_reason
from deadletter.controller.reconcile.replay_order import is_in_line, replay_ahead_of
from deadletter.core import names, times
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, JOBS, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import first_finding
from deadletter.plan.pod_template import ASSIGNMENT_KEY
from deadletter.plan.queue_checks import route_targets
from deadletter.plan.replay_checks import REPLAY_CHECKS
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.replay_status import is_finished, replay_status

RESULTS = ("matched", "replayed", "archived", "discarded", "skipped", "failedAgain")


async def reconcile(context: OperatorContext, key: ObjectKey, replay: Replay, body: Body) -> bool:
    """Judge, carry out, report. True: look again soon."""
    if replay.metadata.deletion_timestamp:
        return False
    if is_finished(replay):
        export_metrics(replay, body.get("status") or {})
        await _delete_if_expired(context, key, replay)
        return False
    facts = await gather_replay_facts(context, replay)
    facts = await _gather_pod_facts(context, facts)
    found = None if facts.assignment else first_finding(REPLAY_CHECKS, replay, facts)
    if found is None and facts.queue is not None and facts.connection is not None:
        hold = replay.spec.suspend or facts.blocking_replay is not None or not (facts.assignment or is_in_line(body))
        if facts.job is not None or not hold:
            found = await children.apply_children(context, plan_replay(replay, facts, context.workers, hold))
        facts = replace(facts, job=_child(context, JOBS, replay))
    status = replay_status(replay, facts, found)
    await statuses.write_status(context, key, replay, body, status)
    export_metrics(replay, status)
    return "completionTime" not in status and (found is None or found.is_transient)


async def gather_replay_facts(context: OperatorContext, replay: Replay, confirm: bool = True) -> ReplayFacts:
    """What a Replay is judged by."""
    where, to = replay.namespace, replay.spec.to
    queue = await find_object(context, DeadLetterQueue, QUEUES, where, replay.spec.queue_ref.name, confirm)
    preview = target = None
    if replay.spec.preview_ref is not None:
        preview = await find_object(context, Replay, REPLAYS, where, replay.spec.preview_ref.name, confirm)
    if to is not None and to.queue_ref is not None:
        target = await find_object(context, DeadLetterQueue, QUEUES, where, to.queue_ref.name, confirm)
    services = [to.service_ref.name] if confirm and to is not None and to.service_ref is not None else []
    reading = context.observed.stats.get((where, replay.spec.queue_ref.name))
    return ReplayFacts(
        queue=queue,
        connection=await _connection(context, queue, confirm),
        preview=preview,
        target=target,
        target_connection=await _connection(context, target, confirm),
        route_boxes=await _route_target_boxes(context, target or queue, confirm),
        services=await services_exist(context, where, services),
        blocking_replay=replay_ahead_of(context, replay),
        progress=reading.progress.get(replay.uid, ()) if reading else (),
        job=_child(context, JOBS, replay),
        assignment=_stored_assignment(context, replay),
        now=now_ms(),
    )


async def _route_target_boxes(context: OperatorContext, queue: DeadLetterQueue | None, confirm: bool) -> tuple[str, ...]:
    connection = await _connection(context, queue, confirm)
    if queue is None or connection is None:
        return ()
    found = [await find_object(context, DeadLetterQueue, QUEUES, queue.namespace, name, confirm) for name in route_targets(queue)]
    return tuple(one.boxes(connection.spec.is_redis).dead for one in found if one)


async def _connection(context: OperatorContext, queue: DeadLetterQueue | None, confirm: bool) -> BrokerConnection | None:
    if queue is None:
        return None
    return await find_object(context, BrokerConnection, CONNECTIONS, queue.namespace, queue.spec.broker_ref.name, confirm)


def _child(context: OperatorContext, resource: Resource, replay: Replay) -> Body | None:
    """The child of this Replay; not that of an earlier one of the same name, which is still on its way out."""
    body = context.informers[resource].get(replay.namespace, names.child_name(replay.name, "replay"))
    owners = body["metadata"].get("ownerReferences", ()) if body else ()
    return body if any(owner["uid"] == replay.uid for owner in owners) else None


def _stored_assignment(context: OperatorContext, replay: Replay) -> str:
    config = _child(context, CONFIG_MAPS, replay) or {}
    return str((config.get("data") or {}).get(ASSIGNMENT_KEY, ""))


async def _gather_pod_facts(context: OperatorContext, facts: ReplayFacts) -> ReplayFacts:
    """What its pods say: when one ended, and when one should run and does not."""
    status = (facts.job or {}).get("status") or {}
    ended, idle = status.get("failed") or status.get("conditions"), status.get("active") and not status.get("ready")
    if facts.job is None or not (ended or idle):
        return facts
    pods = await pods_of_job(context, facts.job)
    return replace(facts, pod_exits=container_exits(pods), pod_problem=waiting_reason(pods) if idle else "")


async def _delete_if_expired(context: OperatorContext, key: ObjectKey, replay: Replay) -> None:
    """Delete it when its time is over; until then come back."""
    ttl = replay.spec.ttl_seconds_after_finished
    if ttl is None or replay.status.completion_time is None:
        return
    left = times.parse(replay.status.completion_time) + ttl * 1000 - now_ms()
    if left > 0:
        context.workqueue.add_after(key, left / 1000 + 0.5)
    else:
        await context.kube.delete(REPLAYS, replay.namespace, replay.name, replay.uid)


def export_metrics(replay: Replay, status: Body) -> None:
    """The metrics of a Replay."""
    where = (replay.namespace, replay.name, replay.spec.queue_ref.name)
    for result in RESULTS:
        metrics.REPLAY_LETTERS.labels(*where, result).set(status.get(result) or 0)
    total = sum(span["end"] - span["start"] for span in status.get("window") or ())
    done = 1.0 if status.get("completionTime") else 1 - (status.get("remaining") or 0) / total if total else 0.0
    metrics.REPLAY_PROGRESS.labels(*where).set(done)
    failed = any(one["type"] == "Succeeded" and one["status"] == "False" for one in status.get("conditions") or ())
    metrics.REPLAY_FAILED.labels(*where).set(failed)
