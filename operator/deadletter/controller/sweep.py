"""One pass of readings over all queues, broker by broker: gauges at once, statuses by waking their objects."""

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
from deadletter.clock import now_ms
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile import status
from deadletter.controller.reconcile.facts import known_loss, ledger_lacks, parse, still_exists
from deadletter.controller.state.broker_pool import ConnectionKey, PooledBroker
from deadletter.controller.state.dependents import BY_BROKER, BY_QUEUE
from deadletter.core.boxes import BoxStats
from deadletter.kube import CONNECTIONS, QUEUES, REPLAYS
from deadletter.plan.degraded import degraded_condition, queue_pause_reason, retention_loss_time, utilization_percent
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts
from deadletter.plan.queue_status import NUMBER_FIELDS, consumer_group_status, letter_numbers

SWEEP_TIMEOUT_S = 120.0
MAX_GROUP_SERIES = 10
YIELD_EVERY = 20  # queues between two turns of the event loop
READ_ERRORS = (  # what only a reading shows
    BoxConflict,
    BoxRecreated,
    LedgerCorrupt,
    LedgerTooNew,
    NotAuthorised,
    NotSupported,
)
log = structlog.stdlib.get_logger("sweep")


async def sweep_forever(context: OperatorContext) -> None:
    """Sweep, rest, sweep; one broker that does not answer holds back no other."""
    swept: dict[ConnectionKey, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            lines = dict(context.pool.items())
            swept = {key: task for key, task in swept.items() if key in lines and not task.done()}
            for key in lines.keys() - swept.keys():
                swept[key] = group.create_task(sweep_broker(context, key, lines[key]))
            if not lines:
                context.liveness.swept_at = time.monotonic()
            await asyncio.sleep(context.settings.sweep_seconds)


async def monitored_boxes(context: OperatorContext, key: ConnectionKey) -> dict[str, tuple[DeadLetterQueue, MonitoredBox]]:
    """The dead boxes of one connection, by name: those that were found to be there, each with its owner."""
    namespace, name = key
    connection = parse(BrokerConnection, context.informers[CONNECTIONS].get(namespace, name))
    if connection is None:
        return {}
    out = {}
    for count, body in enumerate(context.informers[QUEUES].by_index(BY_BROKER, namespace, name)):
        await _yield_to_loop(count)
        known = (namespace, body["metadata"]["name"]) in context.observed.surveys
        if known and (queue := parse(DeadLetterQueue, body)):
            boxes, dead = queue.boxes(connection.spec.is_redis), queue.spec.dead
            watched = MonitoredBox(boxes.dead, boxes.ledger, boxes.retry, dead.dialect, dead.read_values, dead.origin)
            out[boxes.dead] = (queue, watched)
    return out


async def _yield_to_loop(count: int) -> None:
    if count % YIELD_EVERY == 0:
        await asyncio.sleep(0)


async def sweep_broker(context: OperatorContext, key: ConnectionKey, pooled: PooledBroker) -> None:
    """Readings of all queues on one broker; whatever goes wrong with one concerns it alone."""
    watched = await monitored_boxes(context, key)
    began = time.monotonic()
    answers: Mapping[str, BoxStats | BrokerError]
    try:
        async with asyncio.timeout(SWEEP_TIMEOUT_S):
            answers = await pooled.monitor.sweep([one for _, one in watched.values()], now_ms())
    except BrokerError as error:
        answers = dict.fromkeys(watched, error)
    except TimeoutError:
        answers = dict.fromkeys(watched, BrokerError("the sweep took too long"))
    except Exception as error:  # noqa: BLE001 - one broker must not end the sweep of the others
        log.warning("a sweep failed", namespace=key[0], connection=key[1], error=type(error).__name__)
        answers = dict.fromkeys(watched, BrokerError("the sweep failed"))
    metrics.SWEEP_DURATION.observe(time.monotonic() - began)
    for count, (dead, (queue, _)) in enumerate(watched.items()):
        await _yield_to_loop(count)
        # A sweep takes its time: nothing is kept or shown of a queue that was deleted meanwhile.
        answer = answers.get(dead) if still_exists(context, queue) else None
        if isinstance(answer, BoxStats):
            record_stats(context, queue, answer)
        elif answer is not None:
            record_failure(context, queue, answer)
    context.liveness.swept_at = time.monotonic()


def record_failure(context: OperatorContext, queue: DeadLetterQueue, error: BrokerError) -> None:
    """No reading is not nought: the gauges go, the failure counts, the queue looks at its broker again."""
    key = (queue.namespace, queue.name)
    metrics.remove_box_metrics(*key)
    metrics.SWEEPS_FAILED.labels(*key).inc()
    context.observed.stats.pop(key, None)
    if isinstance(error, READ_ERRORS):
        known, context.observed.read_errors[key] = context.observed.read_errors.get(key), error
        news = type(known) is not type(error)
    else:
        news = context.observed.surveys.pop(key, None) is not None
    if news:
        log.warning("a reading failed", namespace=key[0], queue=key[1], reason=type(error).__name__)
        context.workqueue.add(ObjectKey(QUEUES, *key))
        context.workqueue.add(ObjectKey(CONNECTIONS, key[0], queue.spec.broker_ref.name))


def record_stats(context: OperatorContext, queue: DeadLetterQueue, reading: BoxStats) -> None:
    """Show it, keep it, and wake whom it changes."""
    key = (queue.namespace, queue.name)
    before = context.observed.stats.get(key)
    context.observed.stats[key] = reading
    if reading.lost:
        _record_loss(context, queue, reading.lost)
    facts = facts_from_stats(context, queue, reading)
    export_metrics(queue, facts, reading)
    if reading.skipped:
        metrics.LEDGER_SKIPPED.labels(*key).inc(reading.skipped)
    object_key = ObjectKey(QUEUES, *key)
    turns = _changes_status(queue, facts, before) or _is_first_heartbeat(queue, facts)
    if context.observed.read_errors.pop(key, None) or reading.lost or turns:
        context.workqueue.add(object_key)
    elif _has_new_numbers(queue, facts):
        context.workqueue.add_after(object_key, max(0.0, status.seconds_until_writable(context, object_key)))
    if before is None or before.progress != reading.progress:
        for body in context.informers[REPLAYS].by_index(BY_QUEUE, queue.namespace, queue.name):
            if not (body.get("status") or {}).get("completionTime"):
                context.workqueue.add(ObjectKey(REPLAYS, queue.namespace, body["metadata"]["name"]))


def _record_loss(context: OperatorContext, queue: DeadLetterQueue, letters: int) -> None:
    before = known_loss(context, queue)
    loss = ParkedLetterLoss(letters + (before.letters if before else 0), now_ms())
    context.observed.losses[queue.namespace, queue.name] = loss
    log.error("parked letters lost", namespace=queue.namespace, queue=queue.name, letters=letters, total=loss.letters)


def facts_from_stats(context: OperatorContext, queue: DeadLetterQueue, reading: BoxStats) -> QueueFacts:
    """As much as a reading needs to be told."""
    survey = context.observed.surveys.get((queue.namespace, queue.name))
    dead = queue.status.boxes.dead if queue.status.boxes else None
    state = survey.states.get(dead) if survey and dead else None
    return QueueFacts(
        stats=reading,
        retention_ms=state.retention_ms if state else None,
        loss=known_loss(context, queue),
        ledger_problem=ledger_lacks(context, queue),
        now=now_ms(),
    )


def _changes_status(queue: DeadLetterQueue, facts: QueueFacts, before: BoxStats | None) -> bool:
    """Does a condition turn, or the gate? That is told at once."""
    said, now = queue.status.condition("Degraded"), degraded_condition(queue, facts)
    turned = said is None or (said.status, said.reason) != (now.status, now.reason.value)
    return turned or queue_pause_reason(queue, facts.stats) != queue_pause_reason(queue, before)


def _is_first_heartbeat(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """True if a courier was heard of and the status does not know yet that its group has started."""
    return queue.status.consumer_group is None and consumer_group_status(queue, facts) is not None


def _has_new_numbers(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """Are the numbers others than those in the status? They are told when their time has come."""
    told = queue.status.to_wire()
    before = {name: told[name] for name in NUMBER_FIELDS if name in told}
    return before != {"groups": []} | letter_numbers(queue, facts)


def export_metrics(queue: DeadLetterQueue, facts: QueueFacts, reading: BoxStats) -> None:
    """The gauges of one queue."""
    where = (queue.namespace, queue.name)
    if not reading.caught_up:
        metrics.remove_box_metrics(*where)
        return
    metrics.LETTERS.labels(*where).set(reading.depth)
    metrics.PARKED_LETTERS.labels(*where).set(reading.parked)
    _set_or_remove(metrics.OLDEST_LETTER_TIMESTAMP, where, None if reading.oldest is None else reading.oldest / 1000)
    _set_or_remove(metrics.OLDEST_LETTER_AGE, where, 0.0 if reading.oldest is None else max(0, facts.now - reading.oldest) / 1000)
    loss, used = retention_loss_time(facts), utilization_percent(queue, reading)
    _set_or_remove(metrics.RETENTION_LOSS_TIMESTAMP, where, None if loss is None else loss / 1000)
    capacity = queue.spec.capacity
    _set_or_remove(metrics.CAPACITY_RATIO, where, reading.depth / capacity.max_letters if capacity and used is not None else None)
    _set_or_remove(metrics.PARKED_LETTERS_LOST, where, facts.loss.letters if facts.loss else None)
    _set_or_remove(metrics.PARKED_LETTERS_LOST_TIMESTAMP, where, facts.loss.at / 1000 if facts.loss else None)
    if queue.spec.delivery:
        # A probe that is under way closes nothing; an alert that waits must not begin anew with each.
        metrics.CIRCUIT_OPEN.labels(*where).set(any(word.circuit != "Closed" for word in reading.couriers))
    _export_groups(where, reading)


def _set_or_remove(gauge: Gauge, where: tuple[str, str], value: float | None) -> None:
    if value is None:
        metrics.remove_series((gauge,), *where)
    else:
        gauge.labels(*where).set(value)


def _export_groups(where: tuple[str, str], reading: BoxStats) -> None:
    largest = sorted(reading.groups, key=lambda group: (-group.letters, group.fingerprint))
    shown = {group.fingerprint: group.letters for group in largest[:MAX_GROUP_SERIES]}
    if rest := sum(group.letters for group in largest[MAX_GROUP_SERIES:]):
        shown["other"] = shown.get("other", 0) + rest
    metrics.set_label_values(metrics.GROUP_LETTERS, where, shown)
