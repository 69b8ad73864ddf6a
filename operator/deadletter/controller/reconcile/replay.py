"""One pass over a Replay."""

from dataclasses import replace

from deadletter import metrics
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.controller.context import Operation, Thing
from deadletter.controller.reconcile import children
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import existing, find, now_ms
from deadletter.controller.reconcile.pods import exits, pods_of_job, waits
from deadletter.controller.reconcile.replay_order import ahead_of, stands
from deadletter.core import names, times
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, JOBS, QUEUES, REPLAYS, Body, Resource
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import first
from deadletter.plan.pod_template import ASSIGNMENT
from deadletter.plan.queue_checks import targets
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.replays import REPLAY_CHECKS, is_finished, replay_status

RESULTS = ("matched", "replayed", "archived", "discarded", "skipped", "failedAgain")


async def reconcile(operation: Operation, thing: Thing, replay: Replay, body: Body) -> bool:
    """Judge, carry out, report. True: look again soon."""
    if replay.metadata.deletion_timestamp:
        return False
    if is_finished(replay):
        show(replay, body.get("status") or {})
        await _expire(operation, thing, replay)
        return False
    facts = await gather_replay(operation, replay)
    facts = await _listen(operation, facts)
    found = None if facts.told else first(REPLAY_CHECKS, replay, facts)
    if found is None and facts.queue is not None and facts.connection is not None:
        hold = replay.spec.suspend or facts.ahead is not None or not (facts.told or stands(body))
        if facts.job is not None or not hold:
            found = await children.keep(operation, plan_replay(replay, facts, operation.workers, hold))
        facts = replace(facts, job=_child(operation, JOBS, replay))
    status = replay_status(replay, facts, found)
    await statuses.write(operation, thing, replay, body, status)
    show(replay, status)
    return "completionTime" not in status and (found is None or found.heals)


async def gather_replay(operation: Operation, replay: Replay, confirm: bool = True) -> ReplayFacts:
    """What a Replay is judged by."""
    where, to = replay.namespace, replay.spec.to
    queue = await find(operation, DeadLetterQueue, QUEUES, where, replay.spec.queue_ref.name, confirm)
    preview = target = None
    if replay.spec.preview_ref is not None:
        preview = await find(operation, Replay, REPLAYS, where, replay.spec.preview_ref.name, confirm)
    if to is not None and to.queue_ref is not None:
        target = await find(operation, DeadLetterQueue, QUEUES, where, to.queue_ref.name, confirm)
    services = [to.service_ref.name] if confirm and to is not None and to.service_ref is not None else []
    reading = operation.readings.get((where, replay.spec.queue_ref.name))
    return ReplayFacts(
        queue=queue,
        connection=await _connection(operation, queue, confirm),
        preview=preview,
        target=target,
        target_connection=await _connection(operation, target, confirm),
        routed=await _routed(operation, target or queue, confirm),
        services=await existing(operation, where, services),
        ahead=ahead_of(operation, replay),
        tallies=reading.tallies.get(replay.uid, ()) if reading else (),
        job=_child(operation, JOBS, replay),
        told=_told(operation, replay),
        now=now_ms(),
    )


async def _routed(operation: Operation, queue: DeadLetterQueue | None, confirm: bool) -> tuple[str, ...]:
    connection = await _connection(operation, queue, confirm)
    if queue is None or connection is None:
        return ()
    found = [await find(operation, DeadLetterQueue, QUEUES, queue.namespace, name, confirm) for name in targets(queue)]
    return tuple(one.boxes(connection.spec.is_redis).dead for one in found if one)


async def _connection(operation: Operation, queue: DeadLetterQueue | None, confirm: bool) -> BrokerConnection | None:
    if queue is None:
        return None
    return await find(operation, BrokerConnection, CONNECTIONS, queue.namespace, queue.spec.broker_ref.name, confirm)


def _child(operation: Operation, resource: Resource, replay: Replay) -> Body | None:
    """The child of this Replay; not that of an earlier one of the same name, which is still on its way out."""
    body = operation.snapshots[resource].get(replay.namespace, names.child_name(replay.name, "replay"))
    owners = body["metadata"].get("ownerReferences", ()) if body else ()
    return body if any(owner["uid"] == replay.uid for owner in owners) else None


def _told(operation: Operation, replay: Replay) -> str:
    config = _child(operation, CONFIG_MAPS, replay) or {}
    return str((config.get("data") or {}).get(ASSIGNMENT, ""))


async def _listen(operation: Operation, facts: ReplayFacts) -> ReplayFacts:
    """What its pods say: when one ended, and when one should run and does not."""
    status = (facts.job or {}).get("status") or {}
    ended, idle = status.get("failed") or status.get("conditions"), status.get("active") and not status.get("ready")
    if facts.job is None or not (ended or idle):
        return facts
    pods = await pods_of_job(operation, facts.job)
    return replace(facts, exits=exits(pods), pod_waits=waits(pods) if idle else "")


async def _expire(operation: Operation, thing: Thing, replay: Replay) -> None:
    """Delete it when its time is over; until then come back."""
    ttl = replay.spec.ttl_seconds_after_finished
    if ttl is None or replay.status.completion_time is None:
        return
    left = times.parse(replay.status.completion_time) + ttl * 1000 - now_ms()
    if left > 0:
        operation.work.wake_in(thing, left / 1000 + 0.5)
    else:
        await operation.cluster.delete(REPLAYS, replay.namespace, replay.name, replay.uid)


def show(replay: Replay, status: Body) -> None:
    """The metrics of a Replay."""
    where = (replay.namespace, replay.name, replay.spec.queue_ref.name)
    for result in RESULTS:
        metrics.REPLAY_LETTERS.labels(*where, result).set(status.get(result) or 0)
    total = sum(span["end"] - span["start"] for span in status.get("window") or ())
    done = 1.0 if status.get("completionTime") else 1 - (status.get("remaining") or 0) / total if total else 0.0
    metrics.REPLAY_PROGRESS.labels(*where).set(done)
    failed = any(one["type"] == "Succeeded" and one["status"] == "False" for one in status.get("conditions") or ())
    metrics.REPLAY_FAILED.labels(*where).set(failed)
