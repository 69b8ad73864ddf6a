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
from deadletter.controller.context import Operation, Thing
from deadletter.controller.reconcile import status
from deadletter.controller.reconcile.facts import is_current, ledger_lacks, loss_of, now_ms, read
from deadletter.controller.state.broker_pool import Key, Line
from deadletter.controller.state.dependents import BROKER, QUEUE
from deadletter.core.box_stats import BoxStats
from deadletter.kube import CONNECTIONS, QUEUES, REPLAYS
from deadletter.plan.consumer_group import consumer_group
from deadletter.plan.degraded import degraded, gate, loss_time, utilization
from deadletter.plan.facts import Loss, QueueFacts
from deadletter.plan.queue_status import NUMBERS, numbers

SWEEP_SECONDS = 120.0
TOP = 10
BREATH = 20  # queues between two turns of the event loop
READING = (  # what only a reading shows
    BoxConflict,
    BoxRecreated,
    LedgerCorrupt,
    LedgerTooNew,
    NotAuthorised,
    NotSupported,
)
log = structlog.stdlib.get_logger("sweep")


async def sweep_for_ever(operation: Operation) -> None:
    """Sweep, rest, sweep; one broker that does not answer holds back no other."""
    swept: dict[Key, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            lines = dict(operation.pool.all())
            swept = {key: task for key, task in swept.items() if key in lines and not task.done()}
            for key in lines.keys() - swept.keys():
                swept[key] = group.create_task(sweep_line(operation, key, lines[key]))
            if not lines:
                operation.pulse.swept_at = time.monotonic()
            await asyncio.sleep(operation.settings.sweep_seconds)


async def watched_of(operation: Operation, key: Key) -> dict[str, tuple[DeadLetterQueue, MonitoredBox]]:
    """The dead boxes of one connection, by name: those that were found to be there, each with its owner."""
    namespace, name = key
    connection = read(BrokerConnection, operation.snapshots[CONNECTIONS].get(namespace, name))
    if connection is None:
        return {}
    out = {}
    for count, body in enumerate(operation.snapshots[QUEUES].by(BROKER, namespace, name)):
        await _breathe(count)
        known = (namespace, body["metadata"]["name"]) in operation.surveys
        if known and (queue := read(DeadLetterQueue, body)):
            boxes, dead = queue.boxes(connection.spec.is_redis), queue.spec.dead
            watched = MonitoredBox(boxes.dead, boxes.ledger, boxes.retry, dead.dialect, dead.read_values, dead.origin)
            out[boxes.dead] = (queue, watched)
    return out


async def _breathe(count: int) -> None:
    if count % BREATH == 0:
        await asyncio.sleep(0)


async def sweep_line(operation: Operation, key: Key, line: Line) -> None:
    """Readings of all queues on one broker; whatever goes wrong with one concerns it alone."""
    watched = await watched_of(operation, key)
    began = time.monotonic()
    answers: Mapping[str, BoxStats | BrokerError]
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            answers = await line.registers.sweep([one for _, one in watched.values()], now_ms())
    except BrokerError as error:
        answers = dict.fromkeys(watched, error)
    except TimeoutError:
        answers = dict.fromkeys(watched, BrokerError("the sweep took too long"))
    except Exception as error:  # noqa: BLE001 - one broker must not end the sweep of the others
        log.warning("a sweep failed", namespace=key[0], connection=key[1], error=type(error).__name__)
        answers = dict.fromkeys(watched, BrokerError("the sweep failed"))
    metrics.SWEEP_SECONDS.observe(time.monotonic() - began)
    for count, (dead, (queue, _)) in enumerate(watched.items()):
        await _breathe(count)
        # A sweep takes its time: nothing is kept or shown of a queue that was deleted meanwhile.
        answer = answers.get(dead) if is_current(operation, queue) else None
        if isinstance(answer, BoxStats):
            take(operation, queue, answer)
        elif answer is not None:
            fail(operation, queue, answer)
    operation.pulse.swept_at = time.monotonic()


def fail(operation: Operation, queue: DeadLetterQueue, error: BrokerError) -> None:
    """No reading is not nought: the gauges go, the failure counts, the queue looks at its broker again."""
    key = (queue.namespace, queue.name)
    metrics.forget_reading(*key)
    metrics.SWEEPS_FAILED.labels(*key).inc()
    operation.readings.pop(key, None)
    if isinstance(error, READING):
        known, operation.objections[key] = operation.objections.get(key), error
        news = type(known) is not type(error)
    else:
        news = operation.surveys.pop(key, None) is not None
    if news:
        log.warning("a reading failed", namespace=key[0], queue=key[1], reason=type(error).__name__)
        operation.work.wake(Thing(QUEUES, *key))
        operation.work.wake(Thing(CONNECTIONS, key[0], queue.spec.broker_ref.name))


def take(operation: Operation, queue: DeadLetterQueue, reading: BoxStats) -> None:
    """Show it, keep it, and wake whom it changes."""
    key = (queue.namespace, queue.name)
    before = operation.readings.get(key)
    operation.readings[key] = reading
    if reading.lost:
        _lose(operation, queue, reading.lost)
    facts = facts_of(operation, queue, reading)
    show(queue, facts, reading)
    if reading.skipped:
        metrics.LEDGER_SKIPPED.labels(*key).inc(reading.skipped)
    thing = Thing(QUEUES, *key)
    turns = _turns(queue, facts, before) or _starts(queue, facts)
    if operation.objections.pop(key, None) or reading.lost or turns:
        operation.work.wake(thing)
    elif _is_news(queue, facts):
        operation.work.wake_in(thing, max(0.0, status.wait(operation, thing)))
    if before is None or before.tallies != reading.tallies:
        for body in operation.snapshots[REPLAYS].by(QUEUE, queue.namespace, queue.name):
            if not (body.get("status") or {}).get("completionTime"):
                operation.work.wake(Thing(REPLAYS, queue.namespace, body["metadata"]["name"]))


def _lose(operation: Operation, queue: DeadLetterQueue, letters: int) -> None:
    before = loss_of(operation, queue)
    loss = Loss(letters + (before.letters if before else 0), now_ms())
    operation.losses[queue.namespace, queue.name] = loss
    log.error("parked letters lost", namespace=queue.namespace, queue=queue.name, letters=letters, total=loss.letters)


def facts_of(operation: Operation, queue: DeadLetterQueue, reading: BoxStats) -> QueueFacts:
    """As much as a reading needs to be told."""
    survey = operation.surveys.get((queue.namespace, queue.name))
    dead = queue.status.boxes.dead if queue.status.boxes else None
    state = survey.states.get(dead) if survey and dead else None
    return QueueFacts(
        reading=reading,
        retention_ms=state.retention_ms if state else None,
        loss=loss_of(operation, queue),
        ledger_lacks=ledger_lacks(operation, queue),
        now=now_ms(),
    )


def _turns(queue: DeadLetterQueue, facts: QueueFacts, before: BoxStats | None) -> bool:
    """Does a condition turn, or the gate? That is told at once."""
    said, now = queue.status.condition("Degraded"), degraded(queue, facts)
    turned = said is None or (said.status, said.reason) != (now.status, now.reason.value)
    return turned or gate(queue, facts.reading) != gate(queue, before)


def _starts(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """True if a courier was heard of and the status does not know yet that its group has started."""
    return queue.status.consumer_group is None and consumer_group(queue, facts) is not None


def _is_news(queue: DeadLetterQueue, facts: QueueFacts) -> bool:
    """Are the numbers others than those in the status? They are told when their time has come."""
    told = queue.status.to_wire()
    before = {name: told[name] for name in NUMBERS if name in told}
    return before != {"groups": []} | numbers(queue, facts)


def show(queue: DeadLetterQueue, facts: QueueFacts, reading: BoxStats) -> None:
    """The gauges of one queue."""
    where = (queue.namespace, queue.name)
    if not reading.caught_up:
        metrics.forget_reading(*where)
        return
    metrics.LETTERS.labels(*where).set(reading.depth)
    metrics.PARKED.labels(*where).set(reading.parked)
    _or_remove(metrics.OLDEST, where, None if reading.oldest is None else reading.oldest / 1000)
    _or_remove(metrics.AGE, where, 0.0 if reading.oldest is None else max(0, facts.now - reading.oldest) / 1000)
    loss, used = loss_time(facts), utilization(queue, reading)
    _or_remove(metrics.LOSS, where, None if loss is None else loss / 1000)
    capacity = queue.spec.capacity
    _or_remove(metrics.CAPACITY, where, reading.depth / capacity.max_letters if capacity and used is not None else None)
    _or_remove(metrics.LOST, where, facts.loss.letters if facts.loss else None)
    _or_remove(metrics.LOST_TIME, where, facts.loss.at / 1000 if facts.loss else None)
    if queue.spec.delivery:
        # A probe that is under way closes nothing; an alert that waits must not begin anew with each.
        metrics.CIRCUIT.labels(*where).set(any(word.circuit != "Closed" for word in reading.couriers))
    _groups(where, reading)


def _or_remove(gauge: Gauge, where: tuple[str, str], value: float | None) -> None:
    if value is None:
        metrics.remove((gauge,), *where)
    else:
        gauge.labels(*where).set(value)


def _groups(where: tuple[str, str], reading: BoxStats) -> None:
    largest = sorted(reading.groups, key=lambda group: (-group.letters, group.fingerprint))
    shown = {group.fingerprint: group.letters for group in largest[:TOP]}
    if rest := sum(group.letters for group in largest[TOP:]):
        shown["other"] = shown.get("other", 0) + rest
    metrics.show(metrics.GROUP_LETTERS, where, shown)
