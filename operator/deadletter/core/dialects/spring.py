"""Dialects of Spring: the dead-letter publishing recoverer, retryable topics, and Cloud Stream."""

from deadletter.core.dialects.base import Dialect, HeaderFields
from deadletter.core.letters import Envelope

_DLT = "kafka_dlt-"
_CAUSES = ("kafka_exception-cause-fqcn", f"{_DLT}exception-cause-fqcn")
_WRAPPER = "org.springframework.kafka.listener.ListenerExecutionFailedException"


def _is_binary(raw: bytes | None) -> bool:
    return raw is not None and len(raw) in {4, 8} and not raw.isdigit()


def _is_cloud_stream(fields: HeaderFields) -> bool:
    """True if numbers are big-endian integers; home-made headers of the same names hold text."""
    last = fields.last
    if any(_is_binary(last.get(f"x-original-{name}")) for name in ("partition", "offset", "timestamp")):
        return True
    return "x-exception-fqcn" in last and "x-exception-stacktrace" in last


def _unwrap_exception(fields: HeaderFields, envelope: Envelope) -> None:
    """Replace the wrapper that the listener container throws by its cause, which tells failures apart."""
    failure = envelope.failure
    if failure.type == _WRAPPER:
        failure.type = fields.text(_CAUSES) or failure.type


def _fix_retry_headers(fields: HeaderFields, envelope: Envelope) -> None:
    """Unwrap the exception; old versions wrote attempts as one unsigned byte, which may look like a digit."""
    _unwrap_exception(fields, envelope)
    raw = fields.last.get("retry_topic-attempts")
    if raw is not None and len(raw) == 1:
        envelope.attempts = raw[0]


RETRY_TOPIC = Dialect(
    name="spring-retry-topic",
    markers=("retry_topic-attempts", "retry_topic-original-timestamp", "retry_topic-backoff-timestamp"),
    topic=("kafka_original-topic", f"{_DLT}original-topic"),
    partition=("kafka_original-partition", f"{_DLT}original-partition"),
    offset=("kafka_original-offset", f"{_DLT}original-offset"),
    timestamp=("kafka_original-timestamp", f"{_DLT}original-timestamp"),
    group=(f"{_DLT}original-consumer-group",),
    attempts=("retry_topic-attempts",),
    first_failed_at=("retry_topic-original-timestamp",),
    type=("kafka_exception-fqcn", f"{_DLT}exception-fqcn", "kafka_key-exception-fqcn"),
    cause=_CAUSES,
    text=("kafka_exception-message", f"{_DLT}exception-message", "kafka_key-exception-message"),
    stack=("kafka_exception-stacktrace", f"{_DLT}exception-stacktrace", "kafka_key-exception-stacktrace"),
    strip_names=("retry_topic-*", "kafka_original-*", "kafka_exception-*", "kafka_key-exception-*", f"{_DLT}*"),
    post_process=_fix_retry_headers,
)
DLT = Dialect(
    name="spring-dlt",
    markers=(f"{_DLT}original-topic", f"{_DLT}exception-fqcn", f"{_DLT}key-exception-fqcn"),
    topic=(f"{_DLT}original-topic",),
    partition=(f"{_DLT}original-partition",),
    offset=(f"{_DLT}original-offset",),
    timestamp=(f"{_DLT}original-timestamp",),
    group=(f"{_DLT}original-consumer-group",),
    type=(f"{_DLT}exception-fqcn", f"{_DLT}key-exception-fqcn"),
    cause=(f"{_DLT}exception-cause-fqcn",),
    text=(f"{_DLT}exception-message", f"{_DLT}key-exception-message"),
    stack=(f"{_DLT}exception-stacktrace", f"{_DLT}key-exception-stacktrace"),
    strip_names=(f"{_DLT}*", "springDeserializerException*"),
    post_process=_unwrap_exception,
)
CLOUD_STREAM = Dialect(
    name="spring-cloud-stream",
    markers=("x-original-topic",),
    detect=_is_cloud_stream,
    topic=("x-original-topic",),
    partition=("x-original-partition",),
    offset=("x-original-offset",),
    timestamp=("x-original-timestamp",),
    type=("x-exception-fqcn",),
    text=("x-exception-message",),
    stack=("x-exception-stacktrace",),
    strip_names=("x-original-*", "x-exception-*"),
    is_exclusive=False,
)
DIALECTS = (RETRY_TOPIC, DLT, CLOUD_STREAM)
