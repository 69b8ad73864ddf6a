"""Every metric a worker exports, with its meaning. The operator's own are in `deadletter.metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

QUEUE = ("namespace", "queue")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

ATTEMPTS = Counter(
    "dlq_delivery_attempts", "Deliveries tried: delivered, failed or fault (the queue's).", (*QUEUE, "outcome")
)
DURATION = Histogram("dlq_delivery_duration_seconds", "One delivery, until its whole answer.", QUEUE, buckets=SECONDS)
BURIED = Counter("dlq_letters_buried", "Letters laid into a dead box.", (*QUEUE, "reason", "category"))
DISCARDED = Counter("dlq_letters_discarded", "Messages dropped as the policy says.", (*QUEUE, "reason"))
RETRIES = Counter(
    "dlq_retries", "Retries decided: held in memory (inline) or laid into the retry box (parked).", (*QUEUE, "where")
)
PARKED = Gauge("dlq_retries_parked", "Letters waiting in the retry partitions of this pod.", QUEUE)
LOST = Counter("dlq_parked_letters_lost", "Parked letters that were gone from the retry box when they were due.", QUEUE)
CIRCUIT = Gauge("dlq_circuit_open", "1 while the circuit is not closed.", QUEUE)
PAUSED = Gauge(
    "dlq_courier_paused", "1 while nothing is claimed, or nothing of some partition, by reason.", (*QUEUE, "reason")
)
LAG = Gauge("dlq_courier_lag", "Messages of the source not yet claimed, as far as known.", QUEUE)
IN_FLIGHT = Gauge("dlq_courier_in_flight", "Deliveries under way.", QUEUE)
REFUSALS = Counter(
    "dlq_settlements_refused",
    "Times a box or the broker did not take a settlement; it is tried again.",
    (*QUEUE, "reason"),
)

REDRIVEN = Counter("dlq_redrive_letters", "Letters sent back to their origin, by round.", (*QUEUE, "round"))
REDRIVE_WAITING = Gauge("dlq_redrive_waiting", "Letters waiting for the end of their backoff.", QUEUE)
REDRIVE_EXHAUSTED = Gauge(
    "dlq_redrive_exhausted", "Open letters that went back as often as the policy allows; they stay.", QUEUE
)
REDRIVE_PAUSED = Gauge("dlq_redrive_paused", "1 while nothing is sent back, by reason.", (*QUEUE, "reason"))

REPLAYS = CollectorRegistry()  # apart: the operator's own gauge of the same letters has the same stem
ProcessCollector(registry=REPLAYS)
REPLAYED = Counter(
    "dlq_replay_letters",
    "Letters this pod has durably counted: replayed, archived, discarded, skipped or failedAgain.",
    ("namespace", "replay", "queue", "result"),
    registry=REPLAYS,
)
