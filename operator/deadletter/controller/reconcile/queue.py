"""One pass over a DeadLetterQueue."""

import asyncio
from dataclasses import replace
from typing import Any

import structlog

from deadletter import metrics
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.clock import now_ms
from deadletter.controller.context import FINALIZER, ObjectKey, OperatorContext
from deadletter.controller.reconcile import boxes, children, group_offsets
from deadletter.controller.reconcile import status as statuses
from deadletter.controller.reconcile.facts import (
    confirm_current,
    gather_external_facts,
    gather_queue_facts,
    older_owner,
)
from deadletter.controller.reconcile.pods import describe_problem, pods_of_queue
from deadletter.controller.reconcile.replay_order import active_replay
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.controller.state.dependents import BY_OWNER_UID
from deadletter.controller.terminating_namespaces import is_terminating
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, QUEUES, Body
from deadletter.plan.degraded import retention_warning_ms
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding, first_finding
from deadletter.plan.queue_checks import LOOKUP_CHECKS, OBJECT_CHECKS, box_is_free
from deadletter.plan.queue_status import queue_status, replica_failure_message
from deadletter.plan.worker_manifests import plan_live_config, plan_worker, worker_role

log = structlog.stdlib.get_logger("queues")
FORCE_DELETE = "deadletter.dev/force-delete"
RELEASED_ANNOTATION = "deadletter.dev/released"  # when, in milliseconds since the epoch
RELEASE_GRACE_MS = 600_000
TERMINATING_DROP_TIMEOUT_S = 1.5
POD_CHECK_INTERVAL_S = 30.0
RESET_LEDGER = "deadletter.dev/reset-ledger"
# A informer tells when these come into being; nobody has to ask for them again and again.
WATCHED_REASONS = (Reason.BrokerConnectionNotFound, Reason.RetryPolicyNotFound, Reason.QueueNotFound)


async def reconcile(context: OperatorContext, key: ObjectKey, queue: DeadLetterQueue, body: Body) -> bool:
    """Judge, carry out, report. True: something heals by time, look again."""
    facts = await gather_queue_facts(context, queue)
    if queue.metadata.deletion_timestamp or queue.namespace in context.terminating_namespaces:
        return await _finalize(context, key, queue, facts, body)
    facts, found = await _validate(context, queue, facts)
    found = found or await _apply(context, queue, facts, body)
    if found is not None:
        told = context.informers[CONFIG_MAPS].by_index(BY_OWNER_UID, queue.uid)
        await children.apply_children(context, plan_live_config(queue, facts, told, active_replay(context, queue) is None))
    facts = replace(await gather_queue_facts(context, queue), secrets=facts.secrets, services=facts.services)
    facts = replace(facts, pod_problem=await _explain_missing_pods(context, queue, facts))
    status = queue_status(queue, facts, found)
    body = context.informers[QUEUES].get(queue.namespace, queue.name) or body  # it may have records by now
    await statuses.write_status(context, key, queue, body, status)
    _export_metrics(queue, facts, status)
    return found is not None and found.is_transient and found.reason not in WATCHED_REASONS


async def _validate(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> tuple[QueueFacts, Finding | None]:
    """What the objects show first, then what must be asked for, at last what only the broker's identity tells."""
    found = first_finding(OBJECT_CHECKS, queue, facts)
    if found is not None or facts.connection is None:
        return facts, found
    facts = replace(facts, **await gather_external_facts(context, queue, facts))
    found = first_finding(LOOKUP_CHECKS, queue, facts)
    if found is not None or facts.connection is None:
        return facts, found
    try:
        await context.pool.ensure_identified(facts.connection)
    except BrokerError as error:
        context.workqueue.add(ObjectKey(CONNECTIONS, queue.namespace, facts.connection.name))
        return facts, boxes.to_finding(error)
    await boxes.probe_conflicting_brokers(context, queue, facts.connection.spec.is_redis)
    facts = replace(facts, box_owner=older_owner(context, queue, facts.connection))
    return facts, box_is_free(queue, facts)


async def _apply(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts, body: Body) -> Finding | None:
    if facts.connection is None:
        return None
    await _sync_finalizer(context, queue, body)
    found = await boxes.ensure_boxes(context, queue, facts.connection)
    if found is not None:
        return found
    redriving = active_replay(context, queue) is None
    wanted = plan_worker(queue, facts, context.workers, redriving)
    found = await children.apply_children(context, wanted)
    await children.prune_children(context, queue, wanted)
    found = found or await _reset_ledger(context, queue, facts) or boxes.sweep_finding(context, queue)
    return found or await group_offsets.check_group_offsets(context, queue, facts)


async def _sync_finalizer(context: OperatorContext, queue: DeadLetterQueue, body: Body) -> None:
    """A finalizer where boxes are to be deleted, and nowhere else."""
    has, needs = FINALIZER in queue.metadata.finalizers, _deletes_boxes(queue)
    if has != needs and not (needs and _is_released(queue)):
        await _patch_finalizers(context, queue, body, FINALIZER if needs else None)


def _deletes_boxes(queue: DeadLetterQueue) -> bool:
    """Are there boxes to delete with it? By what is asked for now: the finalizer may be of another time."""
    return queue.spec.deletion_policy == "Delete" and not queue.spec.dead.adopt


def _is_released(queue: DeadLetterQueue) -> bool:
    """Does an uninstall wait for it? Then no finalizer is put back for a while."""
    at = queue.metadata.annotations.get(RELEASED_ANNOTATION, "")
    return at.isdigit() and now_ms() - int(at) < RELEASE_GRACE_MS


async def _patch_finalizers(context: OperatorContext, queue: DeadLetterQueue, body: Body, add: str | None) -> None:
    others = [one for one in queue.metadata.finalizers if one != FINALIZER]
    meta = {
        "uid": queue.uid,
        "resourceVersion": body["metadata"]["resourceVersion"],
        "finalizers": others + ([add] if add else []),
    }
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    if written["metadata"].get("deletionTimestamp") is None:
        context.informers[QUEUES].upsert(written)


async def _reset_ledger(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A human decided that the ledger of a recreated box is worth nothing."""
    if queue.metadata.annotations.get(RESET_LEDGER) != "true" or facts.connection is None:
        return None
    live = await confirm_current(context, queue)
    if (live["metadata"].get("annotations") or {}).get(RESET_LEDGER) != "true":
        return None  # it was done already
    names = queue.boxes(facts.connection.spec.is_redis)
    try:
        pooled = await context.pool.get_or_open(facts.connection)
        await with_timeout(pooled.broker.reset_ledger(names.dead, names.ledger))
    except BrokerError as error:
        return boxes.to_finding(error)
    context.observed.read_errors.pop((queue.namespace, queue.name), None)
    meta: dict[str, Any] = {"uid": queue.uid, "annotations": {RESET_LEDGER: None}}
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    context.informers[QUEUES].upsert(written)
    return None


async def _finalize(context: OperatorContext, key: ObjectKey, queue: DeadLetterQueue, facts: QueueFacts, body: Body) -> bool:
    """Drop our boxes and let the object go; a broker that is gone is said so and tried again."""
    if FINALIZER not in queue.metadata.finalizers:
        return False
    forced = queue.metadata.annotations.get(FORCE_DELETE) == "true"
    found = None
    if not forced and _deletes_boxes(queue):
        queue = DeadLetterQueue.from_body(await confirm_current(context, queue))
        found = await _drop_boxes_in_time(context, queue, facts)
    if found is None or await _abandons_boxes(context, queue):
        await _patch_finalizers(context, queue, body, None)
        return False
    await statuses.write_status(context, key, queue, body, queue_status(queue, facts, found))
    return True


async def _drop_boxes_in_time(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Where our rights are about to go, the finalizer must be off before them."""
    try:
        async with asyncio.timeout(TERMINATING_DROP_TIMEOUT_S if queue.namespace in context.terminating_namespaces else None):
            return await _drop_boxes(context, queue, facts)
    except TimeoutError:
        return Finding(Reason.DeletionBlocked, "The broker does not answer in time.", True, BOXES_READY)


async def _drop_boxes(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    advice = f" To let it go without deleting boxes, annotate it with {FORCE_DELETE}=true."
    for name in facts.connection.spec.secret_names if facts.connection else ():
        await context.secrets.fact(queue.namespace, name)
    found = await boxes.drop_boxes(context, queue, facts.connection)
    return replace(found, message=found.message + advice) if found else None


async def _abandons_boxes(context: OperatorContext, queue: DeadLetterQueue) -> bool:
    """Its connection and Secrets go with it and cannot be made again: what could not be dropped by now stays."""
    going = await is_terminating(context, queue.namespace)
    if going:
        log.warning("a namespace goes and leaves boxes behind", namespace=queue.namespace, queue=queue.name)
    return going


async def _explain_missing_pods(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> str:
    role = worker_role(queue)
    ready = ((facts.deployment or {}).get("status") or {}).get("availableReplicas")
    if role is None or facts.deployment is None or ready or not facts.deployment["spec"].get("replicas"):
        return ""
    # Nothing tells us when a pod that waits does so for another reason.
    context.workqueue.add_after(ObjectKey(QUEUES, queue.namespace, queue.name), POD_CHECK_INTERVAL_S)
    return describe_problem(await pods_of_queue(context, queue, role)) or replica_failure_message(facts.deployment)


def _export_metrics(queue: DeadLetterQueue, facts: QueueFacts, status: Body) -> None:
    where = (queue.namespace, queue.name)
    metrics.QUEUE_READY.labels(*where).set(status["conditions"][0]["status"] == "True")
    alerts = queue.spec.alerts
    depth = {"depth": float(alerts.depth)} if alerts and alerts.depth is not None else {}
    age = {"age": alerts.age_ms / 1000} if alerts and alerts.age_ms is not None else {}
    warning = retention_warning_ms(facts)
    loss = {"loss": warning / 1000} if warning is not None else {}
    metrics.set_label_values(metrics.ALERT_THRESHOLD, where, depth | age | loss)
    if queue.spec.delivery and facts.deployment is not None:
        metrics.COURIER_REPLICAS.labels(*where).set(queue.spec.delivery.replicas)
        metrics.COURIER_READY_REPLICAS.labels(*where).set(status.get("readyReplicas", 0))
