"""Every metric a worker exports, with its meaning. The operator's own are in `deadletter.metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

QUEUE_LABELS = ("namespace", "queue")
DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

DELIVERY_ATTEMPTS = Counter(
    "dlq_delivery_attempts",
    "Delivery attempts by outcome: delivered, failed, or fault (a problem of the target itself).",
    (*QUEUE_LABELS, "outcome"),
)
DELIVERY_DURATION = Histogram(
    "dlq_delivery_duration_seconds",
    "Duration of one delivery attempt, up to the complete response.",
    QUEUE_LABELS,
    buckets=DURATION_BUCKETS_S,
)
LETTERS_BURIED = Counter("dlq_letters_buried", "Letters written to a dead box.", (*QUEUE_LABELS, "reason", "category"))
LETTERS_DISCARDED = Counter(
    "dlq_letters_discarded", "Messages discarded as the policy says.", (*QUEUE_LABELS, "reason")
)
RETRIES = Counter(
    "dlq_retries",
    "Retries scheduled: inline (kept in memory) or parked (written to the retry box).",
    (*QUEUE_LABELS, "where"),
)
RETRIES_PARKED = Gauge("dlq_retries_parked", "Letters waiting in the retry partitions of this pod.", QUEUE_LABELS)
PARKED_LETTERS_LOST = Counter(
    "dlq_parked_letters_lost", "Parked letters that were missing from the retry box when they were due.", QUEUE_LABELS
)
SOURCE_MESSAGES_DELETED = Counter(
    "dlq_source_messages_deleted",
    "Messages of the source that retention deleted before they were read (Kafka).",
    QUEUE_LABELS,
)
SOURCE_MESSAGES_DELETED_TIMESTAMP = Gauge(
    "dlq_source_messages_deleted_timestamp_seconds",
    "Time at which the courier last noticed such messages; 0 if it never did.",
    QUEUE_LABELS,
)
CIRCUIT_OPEN = Gauge("dlq_circuit_open", "1 while the circuit is not closed.", QUEUE_LABELS)
COURIER_PAUSED = Gauge(
    "dlq_courier_paused",
    "1 while the courier claims nothing, or nothing of some partition, or holds a refused message, by reason.",
    (*QUEUE_LABELS, "reason"),
)
COURIER_LAG = Gauge(
    "dlq_courier_lag", "Messages of the source not yet claimed; no sample while Redis does not know it.", QUEUE_LABELS
)
COURIER_IN_FLIGHT = Gauge("dlq_courier_in_flight", "Deliveries in flight.", QUEUE_LABELS)
SETTLEMENTS_REFUSED = Counter(
    "dlq_settlements_refused",
    "Settlements that a box or the broker refused; the courier tries again.",
    (*QUEUE_LABELS, "reason"),
)

REDRIVE_LETTERS = Counter(
    "dlq_redrive_letters", "Letters sent back to their origin, by round.", (*QUEUE_LABELS, "round")
)
REDRIVE_WAITING = Gauge("dlq_redrive_waiting", "Letters waiting for the end of their backoff.", QUEUE_LABELS)
REDRIVE_EXHAUSTED = Gauge(
    "dlq_redrive_exhausted",
    "Open letters that were sent back as often as the policy allows; they stay in the dead box.",
    QUEUE_LABELS,
)
REDRIVE_PAUSED = Gauge("dlq_redrive_paused", "1 while nothing is sent back, by reason.", (*QUEUE_LABELS, "reason"))

REPLAY_REGISTRY = CollectorRegistry()  # separate: the operator's own gauge of these letters has the same name
ProcessCollector(registry=REPLAY_REGISTRY)
REPLAY_LETTERS = Counter(
    "dlq_replay_letters",
    "Letters that this pod has durably counted: replayed, archived, discarded, skipped or failedAgain.",
    ("namespace", "replay", "queue", "result"),
    registry=REPLAY_REGISTRY,
)
