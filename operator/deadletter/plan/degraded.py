"""What is bad although it runs."""

from collections.abc import Iterator

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core import durations, times
from deadletter.core.box_stats import BoxStats
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import ConditionUpdate, condition
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts

DAY_MS = 86_400_000
LOSS_SHOWN_MS = DAY_MS
LEDGER_REMEDY = (
    "Grant the operator's user ALTER on the cluster and ALTER_CONFIGS on the ledger, or raise it with "
    "kafka-reassign-partitions; see LedgerUnderReplicated in docs/operations/troubleshoot.md."
)


def retention_loss_time(facts: QueueFacts) -> int | None:
    """When retention eats the oldest open letter."""
    if facts.stats is None or facts.stats.oldest is None or not facts.retention_ms or facts.retention_ms < 0:
        return None
    return facts.stats.oldest + facts.retention_ms


def retention_warning_ms(facts: QueueFacts) -> int | None:
    """How long before that we speak of it: a day, or less where letters are kept for less than four."""
    return min(DAY_MS, facts.retention_ms // 4) if facts.retention_ms and facts.retention_ms > 0 else None


def utilization_percent(queue: DeadLetterQueue, reading: BoxStats | None) -> int | None:
    """Percent of the capacity that is taken."""
    capacity = queue.spec.capacity
    if capacity is None or reading is None or not reading.caught_up:
        return None
    return reading.depth * 100 // capacity.max_letters


def is_full(queue: DeadLetterQueue, reading: BoxStats | None) -> bool:
    """Do as many letters lie there as may? Without a reading, as far as is known: a restart opens no gate."""
    used = utilization_percent(queue, reading)
    if used is None and queue.spec.capacity is not None:
        used = queue.status.utilization
    return used is not None and used >= 100


def queue_pause_reason(queue: DeadLetterQueue, reading: BoxStats | None) -> str:
    """Why workers must pause, or nothing."""
    if queue.spec.suspend:
        return Reason.Suspended.value
    if queue.spec.capacity and queue.spec.capacity.on_full == "Pause" and is_full(queue, reading):
        return Reason.CapacityReached.value
    return ""


def worker_pause_reason(queue: DeadLetterQueue, reading: BoxStats | None, may_redrive: bool) -> str:
    """What the worker is told: the gate, or that a standing redrive waits for a Replay. `redriving`: none runs."""
    waits = not may_redrive and queue.spec.delivery is None
    return queue_pause_reason(queue, reading) or (Reason.Queued.value if waits else "")


def degraded_condition(queue: DeadLetterQueue, facts: QueueFacts) -> ConditionUpdate:
    """The worst of what is bad; without a reading what was said last."""
    last = queue.status.condition("Degraded")
    if last is not None and (facts.stats is None or not facts.stats.caught_up):
        return ConditionUpdate("Degraded", last.status, Reason.__members__.get(last.reason, Reason.AsExpected), last.message)
    reason, message = next(_troubles(queue, facts), (None, ""))
    if reason is None:
        return condition("Degraded", False, Reason.AsExpected)
    return condition("Degraded", True, reason, message)


def _troubles(queue: DeadLetterQueue, facts: QueueFacts) -> Iterator[tuple[Reason, str]]:
    for word in facts.stats.couriers if facts.stats else ():
        paused = Reason.__members__.get(word.paused)
        if paused is not None and paused is not Reason.Suspended:
            yield paused, word.message or paused.meaning
        if word.circuit != "Closed":
            yield Reason.CircuitOpen, word.message or "Deliveries fail; the source is paused until a probe succeeds."
    reading = facts.stats
    if reading is None or not reading.caught_up:
        return
    if is_full(queue, reading) and queue.spec.capacity:
        yield Reason.CapacityReached, f"{queue.spec.capacity.max_letters} letters or more lie there."
    if facts.loss is not None and facts.now - facts.loss.at < LOSS_SHOWN_MS:
        yield Reason.ParkedLettersLost, parked_letters_lost_message(facts.loss)
    yield from _ledger(queue, facts.ledger_problem)
    loss, warning = retention_loss_time(facts), retention_warning_ms(facts)
    if loss is not None and warning is not None and loss - facts.now < warning:
        yield Reason.RetentionLossSoon, "Retention will soon eat the oldest open letter: replay it or keep it longer."
    yield from _alerts(queue, reading, facts.now)


def parked_letters_lost_message(loss: ParkedLetterLoss) -> str:
    """Return the message that states the loss and the remedy."""
    return (
        f"{loss.letters} parked letters were deleted from the retry box before they were delivered, the last at "
        f"{times.render(loss.at // 1000 * 1000)}. Stop what deletes them (retention.bytes or cleanup.policy on Kafka, "
        "eviction on Redis, an administrator) and send the messages again; see ParkedLettersLost in "
        "docs/operations/troubleshoot.md."
    )


def _ledger(queue: DeadLetterQueue, lacks: str | None) -> Iterator[tuple[Reason, str]]:
    """A restarted operator has not asked the broker yet: what was said before stands."""
    last = queue.status.condition("Degraded")
    if lacks:
        yield Reason.LedgerUnderReplicated, f"{lacks}. {LEDGER_REMEDY}"
    elif lacks is None and last is not None and last.reason == Reason.LedgerUnderReplicated:
        yield Reason.LedgerUnderReplicated, last.message


def _alerts(queue: DeadLetterQueue, reading: BoxStats, now: int) -> Iterator[tuple[Reason, str]]:
    alerts = queue.spec.alerts
    if alerts is None:
        return
    if alerts.depth is not None and reading.depth > alerts.depth:
        yield Reason.DepthHigh, f"More than {alerts.depth} letters lie open."
    if alerts.age_ms is not None and reading.oldest is not None and now - reading.oldest > alerts.age_ms:
        yield Reason.AgeHigh, f"The oldest open letter is older than {durations.render(alerts.age_ms)}."
