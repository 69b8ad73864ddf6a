"""Read depth, oldest letter and groups of all queues periodically, broker by broker.

Metrics are exported at once. Statuses follow when the queue is reconciled.
"""

import asyncio
import time
from collections.abc import Mapping

import structlog
from prometheus_client import Gauge

from deadletter import metrics
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import (
    BoxConflict,
    BoxRecreated,
    BrokerError,
    LedgerCorrupt,
    LedgerTooNew,
    NotAuthorised,
    NotSupported,
)
from deadletter.brokers.types import MonitoredBox
from deadletter.controller.context import ObjectKey, OperatorContext, object_key
from deadletter.controller.reconcile.facts import known_loss, parse, still_exists
from deadletter.controller.reconcile.status import seconds_until_writable
from deadletter.controller.state.broker_pool import ConnectionKey, PooledBroker
from deadletter.controller.state.dependents import BY_BROKER, BY_QUEUE
from deadletter.core.box_types import BoxStats
from deadletter.kube import CONNECTIONS, QUEUES, REPLAYS
from deadletter.plan.degraded import degraded_condition, queue_pause_reason, retention_loss_time, utilization_percent
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts
from deadletter.plan.queue_status import NUMBER_FIELDS, consumer_group_status, letter_numbers
from deadletter.wall_clock import now_ms

SWEEP_TIMEOUT_S = 120.0
MAX_GROUP_SERIES = 10
YIELD_EVERY = 20  # queues
# Errors that only reading a box shows; describing it succeeds.
READ_ERRORS = (BoxConflict, BoxRecreated, LedgerCorrupt, LedgerTooNew, NotAuthorised, NotSupported)
log = structlog.stdlib.get_logger("sweep")


async def sweep_forever(context: OperatorContext) -> None:
    """Sweep each open broker in a task of its own, so that one that does not answer delays no other."""
    tasks: dict[ConnectionKey, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            brokers = dict(context.pool.list_open())
            tasks = {key: task for key, task in tasks.items() if key in brokers and not task.done()}
            for key in brokers.keys() - tasks.keys():
                tasks[key] = group.create_task(sweep_broker(context, key, brokers[key]))
            if not brokers:
                context.liveness.swept_at = time.monotonic()
            await asyncio.sleep(context.settings.sweep_seconds)


async def monitored_boxes(
    context: OperatorContext, key: ConnectionKey
) -> dict[str, tuple[DeadLetterQueue, MonitoredBox]]:
    """Return the dead boxes of a connection by name, each with its queue; only boxes that a survey has found."""
    namespace, name = key
    connection = parse(BrokerConnection, context.informers[CONNECTIONS].get(namespace, name))
    if connection is None:
        return {}
    found = {}
    for count, body in enumerate(context.informers[QUEUES].by_index(BY_BROKER, namespace, name)):
        await _yield_to_loop(count)
        is_surveyed = (namespace, body["metadata"]["name"]) in context.observed.surveys
        if is_surveyed and (queue := parse(DeadLetterQueue, body)):
            boxes, dead = queue.boxes(connection.spec.is_redis), queue.spec.dead
            box = MonitoredBox(boxes.dead, boxes.ledger, boxes.retry, dead.dialect, dead.read_values, dead.origin)
            found[boxes.dead] = (queue, box)
    return found


async def _yield_to_loop(count: int) -> None:
    if count % YIELD_EVERY == 0:
        await asyncio.sleep(0)


async def sweep_broker(context: OperatorContext, key: ConnectionKey, pooled: PooledBroker) -> None:
    """Read the boxes of all queues on one broker; an error of one box concerns its queue only."""
    monitored = await monitored_boxes(context, key)
    started = time.monotonic()
    results: Mapping[str, BoxStats | BrokerError]
    try:
        async with asyncio.timeout(SWEEP_TIMEOUT_S):
            results = await pooled.monitor.sweep([box for _, box in monitored.values()], now_ms())
    except BrokerError as error:
        results = dict.fromkeys(monitored, error)
    except TimeoutError:
        results = dict.fromkeys(monitored, BrokerError("the sweep took too long"))
    except Exception as error:  # noqa: BLE001 - one broker must not end the sweep of the others
        log.warning("sweep failed", namespace=key[0], connection=key[1], error=type(error).__name__)
        results = dict.fromkeys(monitored, BrokerError("the sweep failed"))
    metrics.SWEEP_DURATION.observe(time.monotonic() - started)
    for count, (dead, (queue, _)) in enumerate(monitored.items()):
        await _yield_to_loop(count)
        # The queue may have been deleted during the sweep; then its result is dropped.
        result = results.get(dead) if still_exists(context, queue) else None
        if isinstance(result, BoxStats):
            record_stats(context, queue, result)
        elif result is not None:
            record_failure(context, queue, result)
    context.liveness.swept_at = time.monotonic()


def record_failure(context: OperatorContext, queue: DeadLetterQueue, error: BrokerError) -> None:
    """Remove the metrics, which are unknown now and not zero, and reconcile the queue if the error is new."""
    name = (queue.namespace, queue.name)
    metrics.remove_box_metrics(*name)
    metrics.SWEEPS_FAILED.labels(*name).inc()
    context.observed.stats.pop(name, None)
    if isinstance(error, READ_ERRORS):
        previous, context.observed.read_errors[name] = context.observed.read_errors.get(name), error
        is_new = type(previous) is not type(error)
    else:
        is_new = context.observed.surveys.pop(name, None) is not None
    if is_new:
        log.warning("reading a dead box failed", namespace=name[0], queue=name[1], reason=type(error).__name__)
        context.workqueue.add(ObjectKey(QUEUES, *name))
        context.workqueue.add(ObjectKey(CONNECTIONS, name[0], queue.spec.broker_ref.name))


def record_stats(context: OperatorContext, queue: DeadLetterQueue, stats: BoxStats) -> None:
    """Store and export what was read, and reconcile the objects whose status changes by it."""
    name = (queue.namespace, queue.name)
    before = context.observed.stats.get(name)
    context.observed.stats[name] = stats
    if stats.lost:
        _record_loss(context, queue, stats.lost)
    facts = facts_from_stats(context, queue, stats)
    export_metrics(queue, facts, stats)
    if stats.skipped:
        metrics.LEDGER_SKIPPED.labels(*name).inc(stats.skipped)
    key = ObjectKey(QUEUES, *name)
    is_urgent = _changes_condition(queue, facts, before) or _starts_group(queue, facts)
    if context.observed.read_errors.pop(name, None) or stats.lost or is_urgent:
        context.workqueue.add(key)
    elif _has_new_numbers(queue, facts):
        context.workqueue.add_after(key, max(0.0, seconds_until_writable(context, key)))
    if before is None or before.progress != stats.progress:
        for body in context.informers[REPLAYS].by_index(BY_QUEUE, queue.namespace, queue.name):
            if not (body.get("status") or {}).get("completionTime"):
                context.workqueue.add(object_key(REPLAYS, body))


def _record_loss(context: OperatorContext, queue: DeadLetterQueue, letters: int) -> None:
    before = known_loss(context, queue)
    loss = ParkedLetterLoss(letters + (before.letters if before else 0), now_ms())
    context.observed.losses[queue.namespace, queue.name] = loss
    log.error("parked letters lost", namespace=queue.namespace, queue=queue.name, letters=letters, total=loss.letters)


def facts_from_stats(context: OperatorContext, queue: DeadLetterQueue, stats: BoxStats) -> QueueFacts:
    """Return the facts that the metrics and the Degraded condition depend on."""
    survey = context.observed.surveys.get((queue.namespace, queue.name))
    dead = queue.status.boxes.dead if queue.status.boxes else None
    state = survey.states.get(dead) if survey and dead else None
    return QueueFacts(
        stats=stats,
        retention_ms=state.retention_ms if state else None,
        loss=known_loss(context, queue),
        ledger_problem=survey.ledger_problem if survey else None,
        now=now_ms(),
    )


def _changes_condition(queue: DeadLetterQueue, facts: QueueFacts, before: BoxStats | None) -> bool:
    """True if the Degraded condition or the reason for a pause differs from before."""
    old, new = queue.status.condition("Degraded"), degraded_condition(queue, facts)
    is_changed = old is None or (old.status, old.reason) != (new.status, new.reason.value)
    return is_changed or queue_pause_reason(queue, facts.stats) != queue_pause_reason(queue, before)


def _starts_group(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """True if a courier has reported and the status does not say yet that its consumer group has started."""
    return queue.status.consumer_group is None and consumer_group_status(queue, facts) is not None


def _has_new_numbers(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """True if the numbers differ from those in the status."""
    status = queue.status.to_wire()
    before = {name: status[name] for name in NUMBER_FIELDS if name in status}
    return before != {"groups": []} | letter_numbers(queue, facts)


def export_metrics(queue: DeadLetterQueue, facts: QueueFacts, stats: BoxStats) -> None:
    """Set the gauges of one queue, or remove them until the box was read completely."""
    labels = (queue.namespace, queue.name)
    if not stats.caught_up:
        metrics.remove_box_metrics(*labels)
        return
    metrics.LETTERS.labels(*labels).set(stats.depth)
    metrics.PARKED_LETTERS.labels(*labels).set(stats.parked)
    oldest, loss = stats.oldest, retention_loss_time(facts)
    _set_or_remove(metrics.OLDEST_LETTER_TIMESTAMP, labels, None if oldest is None else oldest / 1000)
    age_ms = 0 if oldest is None else max(0, facts.now - oldest)
    _set_or_remove(metrics.OLDEST_LETTER_AGE, labels, age_ms / 1000)
    _set_or_remove(metrics.RETENTION_LOSS_TIMESTAMP, labels, None if loss is None else loss / 1000)
    capacity = queue.spec.capacity if utilization_percent(queue, stats) is not None else None
    _set_or_remove(metrics.CAPACITY_RATIO, labels, stats.depth / capacity.max_letters if capacity else None)
    _set_or_remove(metrics.PARKED_LETTERS_LOST, labels, facts.loss.letters if facts.loss else None)
    _set_or_remove(metrics.PARKED_LETTERS_LOST_TIMESTAMP, labels, facts.loss.at / 1000 if facts.loss else None)
    if queue.spec.delivery:
        # HalfOpen counts as open: otherwise each probe would reset an alert that is pending.
        metrics.CIRCUIT_OPEN.labels(*labels).set(any(courier.circuit != "Closed" for courier in stats.couriers))
    _export_groups(labels, stats)


def _set_or_remove(gauge: Gauge, labels: tuple[str, str], value: float | None) -> None:
    if value is None:
        metrics.remove_series((gauge,), *labels)
    else:
        gauge.labels(*labels).set(value)


def _export_groups(labels: tuple[str, str], stats: BoxStats) -> None:
    by_size = sorted(stats.groups, key=lambda group: (-group.letters, group.fingerprint))
    letters = {group.fingerprint: group.letters for group in by_size[:MAX_GROUP_SERIES]}
    if rest := sum(group.letters for group in by_size[MAX_GROUP_SERIES:]):
        letters["other"] = letters.get("other", 0) + rest
    metrics.set_label_values(metrics.GROUP_LETTERS, labels, letters)
