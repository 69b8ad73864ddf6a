"""The condition Degraded, and why workers of a queue must pause."""

from collections.abc import Iterable, Iterator

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core import durations, times
from deadletter.core.box_types import BoxStats
from deadletter.core.condition_types import DEGRADED
from deadletter.core.reasons import Reason
from deadletter.plan.conditions import ConditionUpdate, condition
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts

DAY_MS = 86_400_000
LOSS_SHOWN_MS = DAY_MS
CIRCUIT_OPEN_MESSAGE = (
    "Deliveries fail, so the source is paused until a probe succeeds. Check the service that spec.delivery names."
)
# Letters are lost, or will be: no other problem is worse. The others follow in the order in which they are found.
MOST_SEVERE = (Reason.ParkedLettersLost, Reason.SourceMessagesDeleted, Reason.RetentionLossSoon)
SEVERAL_PROBLEMS = " problems: "
LEDGER_REMEDY = (
    "Grant the operator's user ALTER on the cluster and ALTER_CONFIGS on the ledger, or raise it with "
    "kafka-reassign-partitions; see LedgerUnderReplicated in docs/operations/troubleshoot.md."
)


def retention_loss_time(facts: QueueFacts) -> int | None:
    """Return when retention deletes the oldest open letter; None if it deletes none."""
    if facts.stats is None or facts.stats.oldest is None or not facts.retention_ms or facts.retention_ms < 0:
        return None
    return facts.stats.oldest + facts.retention_ms


def retention_warning_ms(facts: QueueFacts) -> int | None:
    """Return how long before that time to warn: a day, or a quarter of the retention if that is shorter."""
    return min(DAY_MS, facts.retention_ms // 4) if facts.retention_ms and facts.retention_ms > 0 else None


def utilization_percent(queue: DeadLetterQueue, stats: BoxStats | None) -> int | None:
    """Return the open letters as a percentage of `spec.capacity.maxLetters`; None if unknown or unlimited."""
    capacity = queue.spec.capacity
    if capacity is None or stats is None or not stats.caught_up:
        return None
    return stats.depth * 100 // capacity.max_letters


def is_full(queue: DeadLetterQueue, stats: BoxStats | None) -> bool:
    """True if the capacity is reached; without statistics the status decides, so a restart resumes no full queue."""
    used = utilization_percent(queue, stats)
    if used is None and queue.spec.capacity is not None:
        used = queue.status.utilization
    return used is not None and used >= 100


def queue_pause_reason(queue: DeadLetterQueue, stats: BoxStats | None) -> str:
    """Return why the queue's own settings pause its worker, or an empty string."""
    if queue.spec.suspend:
        return Reason.Suspended.value
    if queue.spec.capacity and queue.spec.capacity.on_full == "Pause" and is_full(queue, stats):
        return Reason.CapacityReached.value
    return ""


def worker_pause_reason(queue: DeadLetterQueue, stats: BoxStats | None, may_redrive: bool) -> str:
    """Return why the worker must pause, or an empty string. A standing redrive waits while a Replay runs."""
    waits = not may_redrive and queue.spec.delivery is None
    return queue_pause_reason(queue, stats) or (Reason.Queued.value if waits else "")


def degraded_condition(queue: DeadLetterQueue, facts: QueueFacts) -> ConditionUpdate:
    """Return Degraded with all problems, the worst as the reason; without new statistics the last one stays."""
    last = queue.status.condition(DEGRADED)
    if last is not None and (facts.stats is None or not facts.stats.caught_up):
        reason = Reason.__members__.get(last.reason, Reason.AsExpected)
        return condition(DEGRADED, None if last.status == "Unknown" else last.status == "True", reason, last.message)
    problems = _by_severity(_problems(queue, facts))
    if not problems:
        return condition(DEGRADED, False, Reason.AsExpected)
    message = " ".join(problems.values())
    if len(problems) > 1:
        # The names come first: a long message is cut at its end.
        message = f"{len(problems)}{SEVERAL_PROBLEMS}{', '.join(problems)}. {message}"
    return condition(DEGRADED, True, next(iter(problems)), message)


def _by_severity(problems: Iterable[tuple[Reason, str]]) -> dict[Reason, str]:
    """Return the first message of each reason, the worst reason first."""
    messages: dict[Reason, str] = {}
    for reason, message in problems:
        messages.setdefault(reason, message)
    worst = [reason for reason in MOST_SEVERE if reason in messages]
    return {reason: messages[reason] for reason in (*worst, *messages)}


def _problems(queue: DeadLetterQueue, facts: QueueFacts) -> Iterator[tuple[Reason, str]]:
    """Yield the problems of a queue; a reason may come more than once."""
    stats = facts.stats
    for worker in stats.couriers if stats else ():
        paused = Reason.__members__.get(worker.paused)
        if paused is not None and paused is not Reason.Suspended:
            yield paused, worker.message or f"Pod {worker.pod} is paused: {paused.meaning}"
        if worker.circuit != "Closed":
            yield Reason.CircuitOpen, worker.message or CIRCUIT_OPEN_MESSAGE
    if stats is None or not stats.caught_up:
        return
    if is_full(queue, stats) and queue.spec.capacity:
        yield (
            Reason.CapacityReached,
            (
                f"The dead box holds {queue.spec.capacity.max_letters} open letters or more. "
                "Replay, archive or discard letters, or raise spec.capacity.maxLetters."
            ),
        )
    if facts.loss is not None and facts.now - facts.loss.at < LOSS_SHOWN_MS:
        yield Reason.ParkedLettersLost, parked_letters_lost_message(facts.loss)
    yield from _deleted_messages(stats, facts.now)
    yield from _ledger_problem(queue, facts.ledger_problem)
    lost_at, warning_ms = retention_loss_time(facts), retention_warning_ms(facts)
    if lost_at is not None and warning_ms is not None and lost_at - facts.now < warning_ms:
        retention = "the retention of the adopted box on the broker" if queue.spec.dead.adopt else "spec.dead.retention"
        yield (
            Reason.RetentionLossSoon,
            (
                "Retention deletes the oldest open letter at status.retentionLossTime. "
                f"Replay or archive it before, or raise {retention}."
            ),
        )
    yield from _alerts(queue, stats, facts.now)


def parked_letters_lost_message(loss: ParkedLetterLoss) -> str:
    """Return the message that states the loss and the remedy."""
    return (
        f"{loss.letters} parked letters were deleted from the retry box before they were delivered, the last at "
        f"{times.render_second(loss.at)}. Stop what deletes them (retention.bytes or cleanup.policy on Kafka, "
        "eviction on Redis, an administrator) and send the messages again; see ParkedLettersLost in "
        "docs/operations/troubleshoot.md."
    )


def _deleted_messages(stats: BoxStats, now: int) -> Iterator[tuple[Reason, str]]:
    """Yield what live couriers counted, for a day after the last loss."""
    counts = [worker.deleted for worker in stats.couriers if worker.deleted and now - worker.deleted_at < LOSS_SHOWN_MS]
    if counts:
        yield (
            Reason.SourceMessagesDeleted,
            (
                f"Retention deleted {sum(counts)} messages of the source before they were read and delivered. "
                "Raise the retention of the topic in spec.source, and repair what holds up the delivery; see "
                "SourceMessagesDeleted in docs/operations/troubleshoot.md."
            ),
        )


def _ledger_problem(queue: DeadLetterQueue, problem: str | None) -> Iterator[tuple[Reason, str]]:
    """Yield what the ledger lacks; until a restarted operator has checked it, the problem of the last status stays."""
    last = queue.status.condition(DEGRADED)
    if problem:
        yield Reason.LedgerUnderReplicated, f"{problem}. {LEDGER_REMEDY}"
    elif problem is None and last is not None and Reason.LedgerUnderReplicated in (last.reason, *_listed(last.message)):
        is_listed = SEVERAL_PROBLEMS in last.message
        unchecked = f"{Reason.LedgerUnderReplicated.meaning} {LEDGER_REMEDY}"
        yield Reason.LedgerUnderReplicated, unchecked if is_listed else last.message


def _listed(message: str) -> list[str]:
    """Return the reasons that the message of Degraded lists; none if it is about one problem."""
    _, is_list, rest = message.partition(SEVERAL_PROBLEMS)
    return rest.partition(". ")[0].split(", ") if is_list else []


def _alerts(queue: DeadLetterQueue, stats: BoxStats, now: int) -> Iterator[tuple[Reason, str]]:
    """Yield the limits of `spec.alerts` that are exceeded."""
    alerts = queue.spec.alerts
    if alerts is None:
        return
    remedy = "Find the cause in status.groups, correct it, then replay the letters."
    if alerts.depth is not None and stats.depth > alerts.depth:
        yield Reason.DepthHigh, f"More than {alerts.depth} letters are open, the limit of spec.alerts.depth. {remedy}"
    if alerts.age_ms is not None and stats.oldest is not None and now - stats.oldest > alerts.age_ms:
        age = durations.render(alerts.age_ms)
        yield Reason.AgeHigh, f"The oldest open letter is older than {age}, the limit of spec.alerts.age. {remedy}"
