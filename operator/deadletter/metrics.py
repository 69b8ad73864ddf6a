"""All metrics of the operator with their meaning. Workers export the metrics of `workers/metrics.py`."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, Info

QUEUE_LABELS = ("namespace", "queue")
DURATION_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

LETTERS = Gauge("dlq_letters", "Open letters in the dead box.", QUEUE_LABELS)
OLDEST_LETTER_TIMESTAMP = Gauge(
    "dlq_oldest_letter_timestamp_seconds", "Time at which the oldest open letter failed.", QUEUE_LABELS
)
OLDEST_LETTER_AGE = Gauge("dlq_oldest_letter_age_seconds", "Age of the oldest open letter.", QUEUE_LABELS)
RETENTION_LOSS_TIMESTAMP = Gauge(
    "dlq_retention_loss_timestamp_seconds", "Time at which retention will delete the oldest open letter.", QUEUE_LABELS
)
GROUP_LETTERS = Gauge(
    "dlq_group_letters", "Open letters by failure group: the ten largest groups, and other.", (*QUEUE_LABELS, "group")
)
CAPACITY_RATIO = Gauge("dlq_capacity_ratio", "Open letters as a share of capacity.maxLetters.", QUEUE_LABELS)
PARKED_LETTERS = Gauge(
    "dlq_queue_retries_parked", "Letters parked in the retry box, as counted by the sweep.", QUEUE_LABELS
)
PARKED_LETTERS_LOST = Gauge(
    "dlq_queue_parked_letters_lost",
    "Letters deleted from the retry box before they were delivered, in total.",
    QUEUE_LABELS,
)
PARKED_LETTERS_LOST_TIMESTAMP = Gauge(
    "dlq_queue_parked_letters_lost_timestamp_seconds",
    "Time at which lost parked letters were last found.",
    QUEUE_LABELS,
)
CIRCUIT_OPEN = Gauge(
    "dlq_queue_circuit_open", "1 while a courier of the queue reports that its circuit is not closed.", QUEUE_LABELS
)
COURIER_READY_REPLICAS = Gauge("dlq_courier_ready_replicas", "Ready pods of the courier.", QUEUE_LABELS)
COURIER_REPLICAS = Gauge("dlq_courier_replicas", "Desired pods of the courier.", QUEUE_LABELS)
ALERT_THRESHOLD = Gauge(
    "dlq_alert_threshold",
    "Threshold of an alert: spec.alerts (depth, age), or the lead time before a loss by retention (loss).",
    (*QUEUE_LABELS, "signal"),
)
QUEUE_READY = Gauge("dlq_queue_ready", "1 while the Ready condition of the queue is True.", QUEUE_LABELS)

REPLAY_LABELS = ("namespace", "replay", "queue")
REPLAY_LETTERS = Gauge("dlq_replay_letters", "Letters of a Replay by result.", (*REPLAY_LABELS, "result"))
REPLAY_PROGRESS = Gauge("dlq_replay_progress_ratio", "Share of its window that a Replay has scanned.", REPLAY_LABELS)
REPLAY_FAILED = Gauge("dlq_replay_failed", "1 if a Replay has failed.", REPLAY_LABELS)

SWEEP_DURATION = Histogram(
    "dlq_sweep_duration_seconds", "Duration of one sweep over one broker.", buckets=DURATION_BUCKETS_S
)
SWEEPS_FAILED = Counter("dlq_sweeps_failed", "Sweeps that failed for this queue.", QUEUE_LABELS)
LEDGER_SKIPPED = Counter(
    "dlq_ledger_records_skipped",
    "Ledger records that a sweep skipped because only a later release can read them.",
    QUEUE_LABELS,
)
RECONCILE_DURATION = Histogram(
    "dlq_reconcile_duration_seconds", "Duration of one reconcile of one object.", ("kind",), buckets=DURATION_BUCKETS_S
)
RECONCILE_ERRORS = Counter(
    "dlq_reconcile_errors",
    "Reconciles that ended with an error of the operator or of the API server.",
    ("kind", "reason"),
)
API_REQUESTS = Counter("dlq_api_requests", "Requests to the API server.", ("verb", "resource", "code"))
RELISTS = Counter("dlq_snapshot_relists", "Full lists of a kind.", ("resource",))
RECONCILE_QUEUE_LENGTH = Gauge("dlq_reconcile_queue_length", "Objects that wait to be reconciled.")
BUILD_INFO = Info("dlq_build", "Version of the operator.")

BOX_METRICS = (
    LETTERS,
    OLDEST_LETTER_TIMESTAMP,
    OLDEST_LETTER_AGE,
    RETENTION_LOSS_TIMESTAMP,
    CAPACITY_RATIO,
    PARKED_LETTERS,
    CIRCUIT_OPEN,
)
QUEUE_METRICS = (
    *BOX_METRICS,
    COURIER_READY_REPLICAS,
    COURIER_REPLICAS,
    QUEUE_READY,
    SWEEPS_FAILED,
    LEDGER_SKIPPED,
    PARKED_LETTERS_LOST,
    PARKED_LETTERS_LOST_TIMESTAMP,
)
EXTRA_LABEL_METRICS = (GROUP_LETTERS, ALERT_THRESHOLD)
REPLAY_METRICS = (REPLAY_PROGRESS, REPLAY_FAILED)
_EXPORTED_LABELS: dict[tuple[Gauge, str, str], frozenset[str]] = {}


def remove_series(metrics: Iterable[Any], *labels: str) -> None:
    """Remove the series with these labels; series that do not exist are ignored."""
    for metric in metrics:
        if labels in metric._metrics:  # noqa: SLF001 - remove() of a missing series warns and creates it
            metric.remove(*labels)


def remove_series_starting_with(metrics: Iterable[Any], *labels: str) -> None:
    """Remove every series whose first labels are these."""
    for metric in metrics:
        for key in [key for key in list(metric._metrics) if key[: len(labels)] == labels]:  # noqa: SLF001
            metric.remove(*key)


def set_label_values(gauge: Gauge, queue: tuple[str, str], values: Mapping[str, float]) -> None:
    """Export these values of a gauge with one additional label, and remove all others of this queue."""
    for label in _EXPORTED_LABELS.pop((gauge, *queue), frozenset()) - values.keys():
        gauge.remove(*queue, label)
    for label, value in values.items():
        gauge.labels(*queue, label).set(value)
    if values:
        _EXPORTED_LABELS[gauge, *queue] = frozenset(values)


def remove_queue(namespace: str, queue: str) -> None:
    """Remove all series of a deleted queue."""
    remove_series(QUEUE_METRICS, namespace, queue)
    for gauge in EXTRA_LABEL_METRICS:
        set_label_values(gauge, (namespace, queue), {})


def remove_box_metrics(namespace: str, queue: str) -> None:
    """Remove the series of a box that could not be read, because a missing value is not 0."""
    remove_series(BOX_METRICS, namespace, queue)
    set_label_values(GROUP_LETTERS, (namespace, queue), {})


def remove_replay(namespace: str, replay: str) -> None:
    """Remove all series of a deleted Replay."""
    remove_series_starting_with((*REPLAY_METRICS, REPLAY_LETTERS), namespace, replay)
