"""Home-made headers: known designs, and as a last resort the names that unrelated systems use."""

from deadletter.core.dialects.base import Dialect
from deadletter.core.letters import Confidence

_TOPICS = ("x-original-topic", "x-dlq-original-topic", "dlq-original-topic", "x-dlq-source-topic", "original-topic")
_PARTITIONS = ("x-original-partition", "x-dlq-original-partition", "dlq-original-partition", "original-partition")
_OFFSETS = ("x-original-offset", "x-dlq-original-offset", "dlq-original-offset", "original-offset")
_REASONS = (
    "x-dlq-reason",
    "x-error",
    "x-error-message",
    "x-error-reason",
    "x-dlq-error",
    "x-dlq-error-message",
    "dlq-reason",
    "error-reason",
)
_TYPES = ("x-dlq-error-type", "dlq-error-class", "x-error-type")
_ATTEMPTS = ("x-attempts", "x-dlq-attempts", "x-dlq-retry-count", "dlq-attempts", "x-retry-count")
_TIMES = ("x-failed-at", "x-dlq-timestamp", "x-dlq-failed-at", "dlq-failed-at")
_REPLAYS = ("x-replay-count", "replay_count", "dlq_replay_count")

RETRY_DLQ_DESIGN = Dialect(
    name="retry-dlq-design",
    markers=("x-error-reason",),
    required_names=("source-topic",),
    topic=("source-topic",),
    partition=("partition",),
    offset=("offset",),
    attempts=("x-retry-attempt",),
    text=("x-error-reason",),
    strip_names=("x-error-reason", "x-retry-attempt", "source-topic", "partition", "offset", "epoch"),
    is_exclusive=False,
)
REDPANDA_CONNECT = Dialect(
    name="redpanda-connect",
    markers=("kafka_topic",),
    required_names=("kafka_partition", "kafka_offset"),
    confidence=Confidence.Likely,
    topic=("kafka_topic",),
    partition=("kafka_partition",),
    offset=("kafka_offset",),
    timestamp=("kafka_timestamp_ms", "kafka_timestamp_unix"),
    strip_names=("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp_ms", "kafka_timestamp_unix"),
    is_exclusive=False,
)
GENERIC = Dialect(
    name="generic-x",
    markers=(*_TOPICS, *_REASONS, *_TYPES, *_ATTEMPTS, *_TIMES),
    confidence=Confidence.Guess,
    topic=_TOPICS,
    partition=_PARTITIONS,
    offset=_OFFSETS,
    attempts=_ATTEMPTS,
    failed_at=_TIMES,
    type=_TYPES,
    text=_REASONS,
    replays=_REPLAYS,
    strip_names=(*_TOPICS, *_PARTITIONS, *_OFFSETS, *_REASONS, *_TYPES, *_ATTEMPTS, *_TIMES, *_REPLAYS),
    is_exclusive=False,
)
DIALECTS = (RETRY_DLQ_DESIGN, REDPANDA_CONNECT)
