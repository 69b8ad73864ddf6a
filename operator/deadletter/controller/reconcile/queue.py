"""One pass over a DeadLetterQueue."""

import asyncio
from dataclasses import replace
from typing import Any

import structlog

from deadletter import metrics
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import FINALIZER, Operation, Thing
from deadletter.controller.reconcile import boxes, children, group_offsets
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import confirm, gather_outside, gather_queue, now_ms, owner_of
from deadletter.controller.reconcile.pods import pods_of_queue, trouble
from deadletter.controller.reconcile.replay_order import running_replay
from deadletter.controller.state.broker_pool import within
from deadletter.controller.state.dependents import OWNER
from deadletter.controller.terminating_namespaces import goes
from deadletter.core.reasons import Reason
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, QUEUES, Body
from deadletter.plan.degraded import loss_warning
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import BOXES, Finding, first
from deadletter.plan.gates import plan_gate
from deadletter.plan.queue_checks import GRAPH_CHECKS, box_is_free, secrets_exist, service_exists
from deadletter.plan.queue_status import queue_status, replica_failure
from deadletter.plan.worker_manifests import plan_children, role_of

log = structlog.stdlib.get_logger("queues")
FORCE = "deadletter.dev/force-delete"
RELEASED = "deadletter.dev/released"  # when, in milliseconds since the epoch
RELEASED_MS = 600_000
HASTE_SECONDS = 1.5
WAITING_SECONDS = 30.0
RESET = "deadletter.dev/reset-ledger"
# A snapshot tells when these come into being; nobody has to ask for them again and again.
HEARD = (Reason.BrokerConnectionNotFound, Reason.RetryPolicyNotFound, Reason.QueueNotFound)


async def reconcile(operation: Operation, thing: Thing, queue: DeadLetterQueue, body: Body) -> bool:
    """Judge, carry out, report. True: something heals by time, look again."""
    facts = await gather_queue(operation, queue)
    if queue.metadata.deletion_timestamp or queue.namespace in operation.going:
        return await _release(operation, thing, queue, facts, body)
    facts, found = await _judge(operation, queue, facts)
    found = found or await _carry_out(operation, queue, facts, body)
    if found is not None:
        told = operation.snapshots[CONFIG_MAPS].by(OWNER, queue.uid)
        await children.keep(operation, plan_gate(queue, facts, told, running_replay(operation, queue) is None))
    facts = replace(await gather_queue(operation, queue), secrets=facts.secrets, services=facts.services)
    facts = replace(facts, pod_says=await _pod_says(operation, queue, facts))
    status = queue_status(queue, facts, found)
    body = operation.snapshots[QUEUES].get(queue.namespace, queue.name) or body  # it may have records by now
    await statuses.write(operation, thing, queue, body, status)
    _show(queue, facts, status)
    return found is not None and found.heals and found.reason not in HEARD


async def _judge(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> tuple[QueueFacts, Finding | None]:
    """What the objects show first, then what must be asked for, at last what only the broker's identity tells."""
    found = first(GRAPH_CHECKS, queue, facts)
    if found is not None or facts.connection is None:
        return facts, found
    facts = replace(facts, **await gather_outside(operation, queue, facts))
    found = first((secrets_exist, service_exists), queue, facts)
    if found is not None or facts.connection is None:
        return facts, found
    try:
        await operation.pool.meet(facts.connection)
    except BrokerError as error:
        operation.work.wake(Thing(CONNECTIONS, queue.namespace, facts.connection.name))
        return facts, boxes.finding(error)
    await boxes.meet_rivals(operation, queue, facts.connection.spec.is_redis)
    facts = replace(facts, owner=owner_of(operation, queue, facts.connection))
    return facts, box_is_free(queue, facts)


async def _carry_out(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts, body: Body) -> Finding | None:
    if facts.connection is None:
        return None
    await _guard(operation, queue, body)
    found = await boxes.bring_about(operation, queue, facts.connection)
    if found is not None:
        return found
    redriving = running_replay(operation, queue) is None
    wanted = plan_children(queue, facts, operation.workers, redriving)
    found = await children.keep(operation, wanted)
    await children.prune(operation, queue, wanted)
    found = found or await _reset(operation, queue, facts) or boxes.objection(operation, queue)
    return found or await group_offsets.judge(operation, queue, facts)


async def _guard(operation: Operation, queue: DeadLetterQueue, body: Body) -> None:
    """A finalizer where boxes are to be deleted, and nowhere else."""
    has, needs = FINALIZER in queue.metadata.finalizers, _drops(queue)
    if has != needs and not (needs and _is_released(queue)):
        await _finalizers(operation, queue, body, FINALIZER if needs else None)


def _drops(queue: DeadLetterQueue) -> bool:
    """Are there boxes to delete with it? By what is asked for now: the finalizer may be of another time."""
    return queue.spec.deletion_policy == "Delete" and not queue.spec.dead.adopt


def _is_released(queue: DeadLetterQueue) -> bool:
    """Does an uninstall wait for it? Then no finalizer is put back for a while."""
    at = queue.metadata.annotations.get(RELEASED, "")
    return at.isdigit() and now_ms() - int(at) < RELEASED_MS


async def _finalizers(operation: Operation, queue: DeadLetterQueue, body: Body, add: str | None) -> None:
    others = [one for one in queue.metadata.finalizers if one != FINALIZER]
    meta = {
        "uid": queue.uid,
        "resourceVersion": body["metadata"]["resourceVersion"],
        "finalizers": others + ([add] if add else []),
    }
    written = await operation.cluster.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    if written["metadata"].get("deletionTimestamp") is None:
        operation.snapshots[QUEUES].take(written)


async def _reset(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A human decided that the ledger of a recreated box is worth nothing."""
    if queue.metadata.annotations.get(RESET) != "true" or facts.connection is None:
        return None
    live = await confirm(operation, queue)
    if (live["metadata"].get("annotations") or {}).get(RESET) != "true":
        return None  # it was done already
    names = queue.boxes(facts.connection.spec.is_redis)
    try:
        line = await operation.pool.line(facts.connection)
        await within(line.broker.reset_ledger(names.dead, names.ledger))
    except BrokerError as error:
        return boxes.finding(error)
    operation.objections.pop((queue.namespace, queue.name), None)
    meta: dict[str, Any] = {"uid": queue.uid, "annotations": {RESET: None}}
    written = await operation.cluster.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    operation.snapshots[QUEUES].take(written)
    return None


async def _release(operation: Operation, thing: Thing, queue: DeadLetterQueue, facts: QueueFacts, body: Body) -> bool:
    """Drop our boxes and let the object go; a broker that is gone is said so and tried again."""
    if FINALIZER not in queue.metadata.finalizers:
        return False
    forced = queue.metadata.annotations.get(FORCE) == "true"
    found = None
    if not forced and _drops(queue):
        queue = DeadLetterQueue.from_body(await confirm(operation, queue))
        found = await _drop_in_time(operation, queue, facts)
    if found is None or await _namespace_goes(operation, queue):
        await _finalizers(operation, queue, body, None)
        return False
    await statuses.write(operation, thing, queue, body, queue_status(queue, facts, found))
    return True


async def _drop_in_time(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Where our rights are about to go, the finalizer must be off before them."""
    try:
        async with asyncio.timeout(HASTE_SECONDS if queue.namespace in operation.going else None):
            return await _drop(operation, queue, facts)
    except TimeoutError:
        return Finding(Reason.DeletionBlocked, "The broker does not answer in time.", True, BOXES)


async def _drop(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    advice = f" To let it go without deleting boxes, annotate it with {FORCE}=true."
    for name in facts.connection.spec.secret_names if facts.connection else ():
        await operation.secrets.fact(queue.namespace, name)
    found = await boxes.drop(operation, queue, facts.connection)
    return replace(found, message=found.message + advice) if found else None


async def _namespace_goes(operation: Operation, queue: DeadLetterQueue) -> bool:
    """Its connection and Secrets go with it and cannot be made again: what could not be dropped by now stays."""
    going = await goes(operation, queue.namespace)
    if going:
        log.warning("a namespace goes and leaves boxes behind", namespace=queue.namespace, queue=queue.name)
    return going


async def _pod_says(operation: Operation, queue: DeadLetterQueue, facts: QueueFacts) -> str:
    role = role_of(queue)
    ready = ((facts.deployment or {}).get("status") or {}).get("availableReplicas")
    if role is None or facts.deployment is None or ready or not facts.deployment["spec"].get("replicas"):
        return ""
    # Nothing tells us when a pod that waits does so for another reason.
    operation.work.wake_in(Thing(QUEUES, queue.namespace, queue.name), WAITING_SECONDS)
    return trouble(await pods_of_queue(operation, queue, role)) or replica_failure(facts.deployment)


def _show(queue: DeadLetterQueue, facts: QueueFacts, status: Body) -> None:
    where = (queue.namespace, queue.name)
    metrics.READY.labels(*where).set(status["conditions"][0]["status"] == "True")
    alerts = queue.spec.alerts
    depth = {"depth": float(alerts.depth)} if alerts and alerts.depth is not None else {}
    age = {"age": alerts.age_ms / 1000} if alerts and alerts.age_ms is not None else {}
    warning = loss_warning(facts)
    loss = {"loss": warning / 1000} if warning is not None else {}
    metrics.show(metrics.THRESHOLD, where, depth | age | loss)
    if queue.spec.delivery and facts.deployment is not None:
        metrics.COURIER_WANTED.labels(*where).set(queue.spec.delivery.replicas)
        metrics.COURIER_READY.labels(*where).set(status.get("readyReplicas", 0))
