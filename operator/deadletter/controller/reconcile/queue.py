"""Reconcile a DeadLetterQueue: gather facts, check, apply, and write the status."""

import asyncio
from dataclasses import replace
from typing import Any

import structlog

from deadletter import metrics
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import BrokerError
from deadletter.controller.context import FINALIZER, ObjectKey, OperatorContext
from deadletter.controller.reconcile import boxes, children, lost_offsets
from deadletter.controller.reconcile.facts import (
    confirm_current,
    gather_external_facts,
    gather_queue_facts,
    older_owner,
    parse,
    refresh_observations,
)
from deadletter.controller.reconcile.pods import describe_problem, pods_of_queue
from deadletter.controller.reconcile.replay_order import active_replay
from deadletter.controller.reconcile.status import write_status
from deadletter.controller.state.broker_pool import with_timeout
from deadletter.controller.state.dependents import BY_OWNER_UID
from deadletter.controller.terminating_namespaces import is_terminating
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.kube import CONFIG_MAPS, CONNECTIONS, QUEUES, Body
from deadletter.plan.degraded import retention_warning_ms
from deadletter.plan.facts import QueueFacts
from deadletter.plan.findings import Finding, all_findings, first_finding
from deadletter.plan.queue_checks import LOOKUP_CHECKS, OBJECT_CHECKS, box_is_free
from deadletter.plan.queue_status import queue_status, replica_failure_message
from deadletter.plan.worker_manifests import plan_live_config, plan_worker, worker_role
from deadletter.wall_clock import now_ms

log = structlog.stdlib.get_logger("queue")
FORCE_DELETE = "deadletter.dev/force-delete"
RELEASED_ANNOTATION = "deadletter.dev/released"  # milliseconds since the epoch
RESET_LEDGER = "deadletter.dev/reset-ledger"
RELEASE_GRACE_MS = 600_000
TERMINATING_DELETE_TIMEOUT_S = 1.5
POD_CHECK_INTERVAL_S = 30.0
# The informers report when these objects are created, so the queue is not reconciled again and again meanwhile.
WATCHED_REASONS = (Reason.BrokerConnectionNotFound, Reason.RetryPolicyNotFound, Reason.QueueNotFound)


async def reconcile(context: OperatorContext, key: ObjectKey, queue: DeadLetterQueue, body: Body) -> bool:
    """Run one pass; True if the queue should be reconciled again soon."""
    facts = await gather_queue_facts(context, queue)
    if queue.metadata.deletion_timestamp or queue.namespace in context.terminating_namespaces:
        return await _finalize(context, key, queue, facts, body)
    facts, found = await _check(context, queue, facts)
    found = found or await _apply(context, queue, facts, body)
    if found is not None:
        await _update_live_config(context, queue, facts)
    facts = refresh_observations(context, queue, facts)
    facts = replace(facts, pod_problem=await _explain_missing_pods(context, queue, facts))
    status = queue_status(queue, facts, found)
    body = context.informers[QUEUES].get(queue.namespace, queue.name) or body  # it may contain new ownership records
    await write_status(context, key, queue, body, status)
    _export_metrics(queue, facts, status)
    return found is not None and found.is_transient and found.reason not in WATCHED_REASONS


async def _check(
    context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts
) -> tuple[QueueFacts, Finding | None]:
    """Run the cheap checks first, then those that make requests, then the one that needs the broker's identity."""
    found = first_finding(OBJECT_CHECKS, queue, facts)
    if found is not None or facts.connection is None:
        return facts, found
    facts = await gather_external_facts(context, queue, facts)
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
    """Bring finalizer, boxes, worker, ledger and group offsets into the wanted state; return the first problem."""
    if facts.connection is None:
        return None
    await _sync_finalizer(context, queue, body)
    found = await boxes.ensure_boxes(context, queue, facts.connection)
    if found is not None:
        return found
    may_redrive = active_replay(context, queue) is None
    wanted = plan_worker(queue, facts, context.workers, may_redrive)
    found = await children.apply_children(context, wanted)
    await children.prune_children(context, queue, wanted)
    found = found or await _reset_ledger(context, queue, facts) or boxes.sweep_finding(context, queue)
    return found or await lost_offsets.check_group_offsets(context, queue, facts)


async def _update_live_config(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> None:
    """Update the live config of a running worker although the rest of the queue cannot be applied."""
    existing = context.informers[CONFIG_MAPS].by_index(BY_OWNER_UID, queue.uid)
    may_redrive = active_replay(context, queue) is None
    await children.apply_children(context, plan_live_config(queue, facts, existing, may_redrive))


async def _sync_finalizer(context: OperatorContext, queue: DeadLetterQueue, body: Body) -> None:
    """Add our finalizer where boxes must be deleted with the queue, and remove it elsewhere."""
    has_finalizer, needs_finalizer = FINALIZER in queue.metadata.finalizers, _deletes_boxes(queue)
    if has_finalizer != needs_finalizer and not (needs_finalizer and _is_released(queue)):
        await _patch_finalizers(context, queue, body, FINALIZER if needs_finalizer else None)


def _deletes_boxes(queue: DeadLetterQueue) -> bool:
    """True if the current spec asks to delete boxes; the finalizer may stem from an earlier spec."""
    return queue.spec.deletion_policy == "Delete" and not queue.spec.dead.adopt


def _is_released(queue: DeadLetterQueue) -> bool:
    """True if `release-finalizers` ran in the last minutes; then an uninstall waits and no finalizer is added."""
    at = queue.metadata.annotations.get(RELEASED_ANNOTATION, "")
    return at.isdigit() and now_ms() - int(at) < RELEASE_GRACE_MS


async def _patch_finalizers(context: OperatorContext, queue: DeadLetterQueue, body: Body, added: str | None) -> None:
    others = [finalizer for finalizer in queue.metadata.finalizers if finalizer != FINALIZER]
    meta = {
        "uid": queue.uid,
        "resourceVersion": body["metadata"]["resourceVersion"],
        "finalizers": others + ([added] if added else []),
    }
    written = await context.kube.patch(QUEUES, queue.namespace, queue.name, {"metadata": meta})
    if written["metadata"].get("deletionTimestamp") is None:
        context.informers[QUEUES].upsert(written)


async def _reset_ledger(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Delete the ledger of a recreated box if the annotation asks for it, and remove the annotation."""
    if queue.metadata.annotations.get(RESET_LEDGER) != "true" or facts.connection is None:
        return None
    live = await confirm_current(context, queue)
    if (live["metadata"].get("annotations") or {}).get(RESET_LEDGER) != "true":
        return None  # an earlier pass has done it
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


async def _finalize(
    context: OperatorContext, key: ObjectKey, queue: DeadLetterQueue, facts: QueueFacts, body: Body
) -> bool:
    """Delete the owned boxes and remove our finalizer; if that fails, write why, and return True to retry."""
    if FINALIZER not in queue.metadata.finalizers:
        return False
    is_forced = queue.metadata.annotations.get(FORCE_DELETE) == "true"
    found = None
    if not is_forced and _deletes_boxes(queue):
        queue = DeadLetterQueue.from_body(await confirm_current(context, queue))
        found = await _delete_boxes_in_time(context, queue, facts)
    if found is None or await _may_leave_boxes(context, queue):
        await _patch_finalizers(context, queue, body, None)
        return False
    await write_status(context, key, queue, body, queue_status(queue, facts, found))
    return True


async def _delete_boxes_in_time(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Delete the boxes; in a terminating namespace within the time in which the finalizer can still be removed."""
    is_hurried = queue.namespace in context.terminating_namespaces
    try:
        async with asyncio.timeout(TERMINATING_DELETE_TIMEOUT_S if is_hurried else None):
            return await _delete_boxes(context, queue, facts)
    except TimeoutError:
        message = (
            f"The broker of BrokerConnection {queue.spec.broker_ref.name} does not answer in time, "
            "so the boxes are not deleted yet."
        )
        return Finding(Reason.DeletionBlocked, message, True, BOXES_READY)


async def _delete_boxes(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    advice = f" To delete the queue and keep its boxes, annotate it with {FORCE_DELETE}=true."
    for name in facts.connection.spec.secret_names if facts.connection else ():
        await context.secrets.fact(queue.namespace, name)
    found = await boxes.delete_boxes(context, queue, facts.connection)
    return replace(found, message=found.message + advice) if found else None


async def _may_leave_boxes(context: OperatorContext, queue: DeadLetterQueue) -> bool:
    """True if the namespace is terminating: its connection and Secrets go too, so a later attempt cannot succeed."""
    terminating = await is_terminating(context, queue.namespace)
    if terminating:
        log.warning("boxes of a terminating namespace were not deleted", namespace=queue.namespace, queue=queue.name)
    return terminating


async def _explain_missing_pods(context: OperatorContext, queue: DeadLetterQueue, facts: QueueFacts) -> str:
    """Return why no pod of the worker is available, or an empty string if one is or none is wanted."""
    role = worker_role(queue)
    available = ((facts.deployment or {}).get("status") or {}).get("availableReplicas")
    if role is None or facts.deployment is None or available or not facts.deployment["spec"].get("replicas"):
        return ""
    # Pods are not watched, so look again later: the reason may change.
    context.workqueue.add_after(ObjectKey(QUEUES, queue.namespace, queue.name), POD_CHECK_INTERVAL_S)
    return describe_problem(await pods_of_queue(context, queue, role)) or replica_failure_message(facts.deployment)


def _export_metrics(queue: DeadLetterQueue, facts: QueueFacts, status: Body) -> None:
    labels = (queue.namespace, queue.name)
    metrics.QUEUE_READY.labels(*labels).set(status["conditions"][0]["status"] == "True")
    alerts = queue.spec.alerts
    depth = {"depth": float(alerts.depth)} if alerts and alerts.depth is not None else {}
    age = {"age": alerts.age_ms / 1000} if alerts and alerts.age_ms is not None else {}
    warning = retention_warning_ms(facts)
    loss = {"loss": warning / 1000} if warning is not None else {}
    metrics.set_label_values(metrics.ALERT_THRESHOLD, labels, depth | age | loss)
    if queue.spec.delivery and facts.deployment is not None:
        metrics.COURIER_REPLICAS.labels(*labels).set(queue.spec.delivery.replicas)
        metrics.COURIER_READY_REPLICAS.labels(*labels).set(status.get("readyReplicas", 0))


async def validate(context: OperatorContext, body: Body) -> list[Finding]:
    """Run the checks of the webhook: those that need no request."""
    queue = parse(DeadLetterQueue, body)
    if queue is None:
        return []
    return all_findings(OBJECT_CHECKS, queue, await gather_queue_facts(context, queue, confirm_missing=False))
