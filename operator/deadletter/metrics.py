"""Every metric the operator exports, in one list, with its meaning. Workers export their own beside their work."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, Info

QUEUE = ("namespace", "queue")
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

LETTERS = Gauge("dlq_letters", "Open letters in the dead box.", QUEUE)
OLDEST = Gauge("dlq_oldest_letter_timestamp_seconds", "When the oldest open letter died.", QUEUE)
AGE = Gauge("dlq_oldest_letter_age_seconds", "Age of the oldest open letter; grows while nothing happens.", QUEUE)
LOSS = Gauge("dlq_retention_loss_timestamp_seconds", "When retention will eat the oldest open letter.", QUEUE)
GROUP_LETTERS = Gauge(
    "dlq_group_letters", "Open letters of a failure group: the ten largest, and other.", (*QUEUE, "group")
)
CAPACITY = Gauge("dlq_capacity_ratio", "Open letters as a share of capacity.maxLetters.", QUEUE)
PARKED = Gauge("dlq_queue_retries_parked", "Letters waiting in the retry box, as the sweep sees it.", QUEUE)
LOST = Gauge(
    "dlq_queue_parked_letters_lost", "Letters deleted from the retry box before they were delivered, in all.", QUEUE
)
LOST_TIME = Gauge(
    "dlq_queue_parked_letters_lost_timestamp_seconds", "When parked letters were last found to be lost.", QUEUE
)
CIRCUIT = Gauge("dlq_queue_circuit_open", "1 while a courier of the queue says its circuit is open.", QUEUE)
COURIER_READY = Gauge("dlq_courier_ready_replicas", "Pods of the courier that are ready.", QUEUE)
COURIER_WANTED = Gauge("dlq_courier_replicas", "Pods of the courier that should be.", QUEUE)
THRESHOLD = Gauge(
    "dlq_alert_threshold",
    "What an alert compares with: spec.alerts (depth, age), or how long before a loss by retention (loss).",
    (*QUEUE, "signal"),
)
READY = Gauge("dlq_queue_ready", "1 while the queue's Ready condition is True.", QUEUE)

REPLAY = ("namespace", "replay", "queue")
REPLAY_LETTERS = Gauge("dlq_replay_letters", "Letters of a Replay, by result.", (*REPLAY, "result"))
REPLAY_PROGRESS = Gauge("dlq_replay_progress_ratio", "Share of its window a Replay has looked at.", REPLAY)
REPLAY_FAILED = Gauge("dlq_replay_failed", "1 when a Replay ended badly.", REPLAY)

SWEEP_SECONDS = Histogram("dlq_sweep_duration_seconds", "One sweep over one broker.", buckets=SECONDS)
SWEEPS_FAILED = Counter("dlq_sweeps_failed", "Readings that failed.", QUEUE)
LEDGER_SKIPPED = Counter(
    "dlq_ledger_records_skipped",
    "Ledger records that a sweep read and skipped, because only a later release knows them.",
    QUEUE,
)
RECONCILE_SECONDS = Histogram("dlq_reconcile_duration_seconds", "One pass over one object.", ("kind",), buckets=SECONDS)
RECONCILE_ERRORS = Counter(
    "dlq_reconcile_errors", "Passes that ended with an error of ours or of the API.", ("kind", "reason")
)
API_REQUESTS = Counter("dlq_api_requests", "Requests to the API server.", ("verb", "resource", "code"))
RELISTS = Counter("dlq_snapshot_relists", "Full lists of a kind.", ("resource",))
WORK_DEPTH = Gauge("dlq_reconcile_queue_length", "Objects that wait for a pass.")
BUILD = Info("dlq_build", "Version of the operator.")

OF_QUEUE = (
    LETTERS, OLDEST, AGE, LOSS, CAPACITY, PARKED, CIRCUIT, COURIER_READY, COURIER_WANTED, READY, SWEEPS_FAILED,
    LEDGER_SKIPPED, LOST, LOST_TIME,
)  # fmt: skip
OF_READING = (LETTERS, OLDEST, AGE, LOSS, CAPACITY, PARKED, CIRCUIT)
BY_QUEUE_AND_MORE = (GROUP_LETTERS, THRESHOLD)
_SHOWN: dict[tuple[Gauge, str, str], frozenset[str]] = {}
OF_REPLAY = (REPLAY_PROGRESS, REPLAY_FAILED)


def remove(metrics: Iterable[Any], *labels: str) -> None:
    """Take these series away; those that are not there are fine."""
    for metric in metrics:
        if labels in metric._metrics:  # noqa: SLF001 - remove() of a missing series warns and would make one
            metric.remove(*labels)


def remove_beginning(metrics: Iterable[Any], *labels: str) -> None:
    """Take away every series whose first labels are these."""
    for metric in metrics:
        for whole in [key for key in list(metric._metrics) if key[: len(labels)] == labels]:  # noqa: SLF001
            metric.remove(*whole)


def show(gauge: Gauge, where: tuple[str, str], values: Mapping[str, float]) -> None:
    """Of a gauge with one label more than the queue's: these values, and no other of this queue."""
    for label in _SHOWN.pop((gauge, *where), frozenset()) - values.keys():
        gauge.remove(*where, label)
    for label, value in values.items():
        gauge.labels(*where, label).set(value)
    if values:
        _SHOWN[gauge, *where] = frozenset(values)


def forget_queue(namespace: str, queue: str) -> None:
    """A queue is gone: nothing of it is shown any more."""
    remove(OF_QUEUE, namespace, queue)
    for gauge in BY_QUEUE_AND_MORE:
        show(gauge, (namespace, queue), {})


def forget_reading(namespace: str, queue: str) -> None:
    """No reading is not nought: what could not be read is not shown."""
    remove(OF_READING, namespace, queue)
    show(GROUP_LETTERS, (namespace, queue), {})


def forget_replay(namespace: str, replay: str) -> None:
    """A Replay is gone."""
    remove_beginning((*OF_REPLAY, REPLAY_LETTERS), namespace, replay)
