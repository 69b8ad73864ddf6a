"""Every metric the operator exports, in one list, with its meaning. Workers export their own beside their work."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, Info

QUEUE_LABELS = ("namespace", "queue")
DURATION_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

LETTERS = Gauge("dlq_letters", "Open letters in the dead box.", QUEUE_LABELS)
OLDEST_LETTER_TIMESTAMP = Gauge("dlq_oldest_letter_timestamp_seconds", "When the oldest open letter died.", QUEUE_LABELS)
OLDEST_LETTER_AGE = Gauge("dlq_oldest_letter_age_seconds", "Age of the oldest open letter; grows while nothing happens.", QUEUE_LABELS)
RETENTION_LOSS_TIMESTAMP = Gauge("dlq_retention_loss_timestamp_seconds", "When retention will eat the oldest open letter.", QUEUE_LABELS)
GROUP_LETTERS = Gauge(
    "dlq_group_letters", "Open letters of a failure group: the ten largest, and other.", (*QUEUE_LABELS, "group")
)
CAPACITY_RATIO = Gauge("dlq_capacity_ratio", "Open letters as a share of capacity.maxLetters.", QUEUE_LABELS)
PARKED_LETTERS = Gauge("dlq_queue_retries_parked", "Letters waiting in the retry box, as the sweep sees it.", QUEUE_LABELS)
PARKED_LETTERS_LOST = Gauge(
    "dlq_queue_parked_letters_lost", "Letters deleted from the retry box before they were delivered, in all.", QUEUE_LABELS
)
PARKED_LETTERS_LOST_TIMESTAMP = Gauge(
    "dlq_queue_parked_letters_lost_timestamp_seconds", "When parked letters were last found to be lost.", QUEUE_LABELS
)
CIRCUIT_OPEN = Gauge("dlq_queue_circuit_open", "1 while a courier of the queue says its circuit is open.", QUEUE_LABELS)
COURIER_READY_REPLICAS = Gauge("dlq_courier_ready_replicas", "Pods of the courier that are ready.", QUEUE_LABELS)
COURIER_REPLICAS = Gauge("dlq_courier_replicas", "Pods of the courier that should be.", QUEUE_LABELS)
ALERT_THRESHOLD = Gauge(
    "dlq_alert_threshold",
    "What an alert compares with: spec.alerts (depth, age), or how long before a loss by retention (loss).",
    (*QUEUE_LABELS, "signal"),
)
QUEUE_READY = Gauge("dlq_queue_ready", "1 while the queue's Ready condition is True.", QUEUE_LABELS)

REPLAY_LABELS = ("namespace", "replay", "queue")
REPLAY_LETTERS = Gauge("dlq_replay_letters", "Letters of a Replay, by result.", (*REPLAY_LABELS, "result"))
REPLAY_PROGRESS = Gauge("dlq_replay_progress_ratio", "Share of its window a Replay has looked at.", REPLAY_LABELS)
REPLAY_FAILED = Gauge("dlq_replay_failed", "1 when a Replay ended badly.", REPLAY_LABELS)

SWEEP_DURATION = Histogram("dlq_sweep_duration_seconds", "One sweep over one broker.", buckets=DURATION_BUCKETS_S)
SWEEPS_FAILED = Counter("dlq_sweeps_failed", "Readings that failed.", QUEUE_LABELS)
LEDGER_SKIPPED = Counter(
    "dlq_ledger_records_skipped",
    "Ledger records that a sweep read and skipped, because only a later release knows them.",
    QUEUE_LABELS,
)
RECONCILE_DURATION = Histogram("dlq_reconcile_duration_seconds", "One pass over one object.", ("kind",), buckets=DURATION_BUCKETS_S)
RECONCILE_ERRORS = Counter(
    "dlq_reconcile_errors", "Passes that ended with an error of ours or of the API.", ("kind", "reason")
)
API_REQUESTS = Counter("dlq_api_requests", "Requests to the API server.", ("verb", "resource", "code"))
RELISTS = Counter("dlq_snapshot_relists", "Full lists of a kind.", ("resource",))
RECONCILE_QUEUE_LENGTH = Gauge("dlq_reconcile_queue_length", "Objects that wait for a pass.")
BUILD_INFO = Info("dlq_build", "Version of the operator.")

QUEUE_METRICS = (
    LETTERS, OLDEST_LETTER_TIMESTAMP, OLDEST_LETTER_AGE, RETENTION_LOSS_TIMESTAMP, CAPACITY_RATIO, PARKED_LETTERS, CIRCUIT_OPEN, COURIER_READY_REPLICAS, COURIER_REPLICAS, QUEUE_READY, SWEEPS_FAILED,
    LEDGER_SKIPPED, PARKED_LETTERS_LOST, PARKED_LETTERS_LOST_TIMESTAMP,
)  # fmt: skip
BOX_METRICS = (LETTERS, OLDEST_LETTER_TIMESTAMP, OLDEST_LETTER_AGE, RETENTION_LOSS_TIMESTAMP, CAPACITY_RATIO, PARKED_LETTERS, CIRCUIT_OPEN)
EXTRA_LABEL_METRICS = (GROUP_LETTERS, ALERT_THRESHOLD)
_EXPORTED_LABELS: dict[tuple[Gauge, str, str], frozenset[str]] = {}
REPLAY_METRICS = (REPLAY_PROGRESS, REPLAY_FAILED)


def remove_series(metrics: Iterable[Any], *labels: str) -> None:
    """Take these series away; those that are not there are fine."""
    for metric in metrics:
        if labels in metric._metrics:  # noqa: SLF001 - remove() of a missing series warns and would make one
            metric.remove(*labels)


def remove_series_starting_with(metrics: Iterable[Any], *labels: str) -> None:
    """Take away every series whose first labels are these."""
    for metric in metrics:
        for whole in [key for key in list(metric._metrics) if key[: len(labels)] == labels]:  # noqa: SLF001
            metric.remove(*whole)


def set_label_values(gauge: Gauge, where: tuple[str, str], values: Mapping[str, float]) -> None:
    """Of a gauge with one label more than the queue's: these values, and no other of this queue."""
    for label in _EXPORTED_LABELS.pop((gauge, *where), frozenset()) - values.keys():
        gauge.remove(*where, label)
    for label, value in values.items():
        gauge.labels(*where, label).set(value)
    if values:
        _EXPORTED_LABELS[gauge, *where] = frozenset(values)


def remove_queue(namespace: str, queue: str) -> None:
    """A queue is gone: nothing of it is shown any more."""
    remove_series(QUEUE_METRICS, namespace, queue)
    for gauge in EXTRA_LABEL_METRICS:
        set_label_values(gauge, (namespace, queue), {})


def remove_box_metrics(namespace: str, queue: str) -> None:
    """No reading is not nought: what could not be read is not shown."""
    remove_series(BOX_METRICS, namespace, queue)
    set_label_values(GROUP_LETTERS, (namespace, queue), {})


def remove_replay(namespace: str, replay: str) -> None:
    """A Replay is gone."""
    remove_series_starting_with((*REPLAY_METRICS, REPLAY_LETTERS), namespace, replay)
