"""Dialects of messaging frameworks: SmallRye, Karafka, Watermill, Wolverine, MassTransit, NServiceBus and others."""

from deadletter.core.dialects.base import Dialect, HeaderFields
from deadletter.core.letters import Envelope

_WOLVERINE = "wolverine-kafka-retry-"
_MT = "MT-Fault-"
_NSB = "NServiceBus.ExceptionInfo."
_DEAD = "DEAD_LETTER_MESSAGE_"


def _topic_of_uri(_: HeaderFields, envelope: Envelope) -> None:
    """Take the topic from a destination URI such as `kafka://topic/orders`, `queue:orders` or `orders@host`."""
    for origin in (envelope.origin, envelope.hop):
        if origin.topic is not None:
            origin.topic = origin.topic.split("?")[0].rstrip("/").split("/")[-1].split(":")[-1].split("@")[0] or None


def _is_wolverine(fields: HeaderFields) -> bool:
    names = fields.last
    return "failed-at" in names or f"{_WOLVERINE}source" in names or f"{_WOLVERINE}attempt" in names


SMALLRYE = Dialect(
    name="smallrye",
    markers=(
        "dead-letter-topic",
        "dead-letter-reason",
        "dead-letter-exception-class-name",
        "delayed-retry-topic",
        "delayed-retry-count",
    ),
    topic=("dead-letter-topic", "delayed-retry-topic"),
    partition=("dead-letter-partition", "delayed-retry-partition"),
    offset=("dead-letter-offset", "delayed-retry-offset"),
    timestamp=("delayed-retry-original-timestamp",),
    attempts=("delayed-retry-count",),
    first_failed_at=("delayed-retry-first-processing-timestamp",),
    type=("dead-letter-exception-class-name", "delayed-retry-exception-class-name"),
    cause=("dead-letter-cause-class-name", "delayed-retry-cause-class-name"),
    text=("dead-letter-reason", "delayed-retry-reason", "dead-letter-cause", "delayed-retry-cause"),
    strip_names=("dead-letter-*", "delayed-retry-*", "deserialization-failure-*"),
)
KARAFKA = Dialect(
    name="karafka",
    markers=("source_attempts",),
    required_names=("source_topic",),
    topic=("source_topic",),
    partition=("source_partition",),
    offset=("source_offset",),
    group=("source_consumer_group",),
    attempts=("source_attempts",),
    id=("source_trace_id",),
    strip_names=(
        "source_topic",
        "source_partition",
        "source_offset",
        "source_consumer_group",
        "source_attempts",
        "source_trace_id",
    ),
    is_exclusive=False,
)
WATERMILL = Dialect(
    name="watermill",
    markers=("reason_poisoned",),
    topic=("topic_poisoned",),
    group=("subscriber_poisoned", "handler_poisoned"),
    text=("reason_poisoned",),
    strip_names=("reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"),
)
WOLVERINE = Dialect(
    name="wolverine",
    markers=("exception-type", f"{_WOLVERINE}source", f"{_WOLVERINE}attempt"),
    detect=_is_wolverine,
    topic=("original-destination", f"{_WOLVERINE}source"),
    partition=("original-partition",),
    offset=("original-offset",),
    attempts=("attempts", f"{_WOLVERINE}attempt"),
    first_failed_at=(f"{_WOLVERINE}first-failed",),
    failed_at=("failed-at",),
    type=("exception-type", f"{_WOLVERINE}exception-type"),
    text=("exception-message", f"{_WOLVERINE}exception-message"),
    stack=("exception-stack",),
    strip_names=(
        f"{_WOLVERINE}*",
        "exception-type",
        "exception-message",
        "exception-stack",
        "failed-at",
        "original-destination",
        "original-partition",
        "original-offset",
        "attempts",
    ),
    is_exclusive=False,
    post_process=_topic_of_uri,
)
MASSTRANSIT = Dialect(
    name="masstransit",
    markers=(f"{_MT}ExceptionType", f"{_MT}InputAddress", "MT-Reason"),
    topic=(f"{_MT}InputAddress",),
    group=(f"{_MT}ConsumerType",),
    attempts=(f"{_MT}RetryCount", f"{_MT}RedeliveryCount", "MT-Redelivery-Count"),
    failed_at=(f"{_MT}Timestamp",),
    type=(f"{_MT}ExceptionType",),
    text=(f"{_MT}Message",),
    stack=(f"{_MT}StackTrace",),
    reason=("MT-Reason",),
    strip_names=("MT-Reason", f"{_MT}*", "MT-Redelivery-Count"),
    post_process=_topic_of_uri,
)
NSERVICEBUS = Dialect(
    name="nservicebus",
    markers=("NServiceBus.FailedQ", f"{_NSB}ExceptionType"),
    topic=("NServiceBus.FailedQ",),
    failed_at=("NServiceBus.TimeOfFailure",),
    attempts=("NServiceBus.Retries", "NServiceBus.FLRetries"),
    type=(f"{_NSB}ExceptionType",),
    cause=(f"{_NSB}InnerExceptionType",),
    text=(f"{_NSB}Message",),
    stack=(f"{_NSB}StackTrace",),
    id=("NServiceBus.MessageId",),
    strip_names=(
        "NServiceBus.FailedQ",
        "NServiceBus.TimeOfFailure",
        f"{_NSB}*",
        "NServiceBus.Retries*",
        "NServiceBus.FLRetries",
    ),
    post_process=_topic_of_uri,
)
BRIGHTER = Dialect(
    name="brighter",
    markers=("RejectionReason",),
    topic=("OriginalTopic",),
    failed_at=("RejectionTimestamp",),
    text=("RejectionMessage",),
    type=("RejectionReason",),
    strip_names=("OriginalTopic", "OriginalType", "RejectionReason", "RejectionMessage", "RejectionTimestamp"),
)
SILVERBACK = Dialect(
    name="silverback",
    markers=("x-source-topic",),
    topic=("x-source-topic",),
    partition=("x-source-partition",),
    offset=("x-source-offset",),
    timestamp=("x-source-timestamp",),
    group=("x-source-consumer-group-id",),
    attempts=("x-failed-attempts",),
    text=("x-failure-reason",),
    strip_names=(
        "x-source-topic",
        "x-source-partition",
        "x-source-offset",
        "x-source-timestamp",
        "x-source-consumer-group-id",
        "x-failed-attempts",
        "x-failure-reason",
    ),
    is_exclusive=False,
)
CRONSUMER = Dialect(
    name="cronsumer",
    markers=("x-retry-attempt-count",),
    attempts=("x-retry-attempt-count", "x-retry-count"),
    timestamp=("x-produce-time",),
    text=("x-error-message",),
    strip_names=("x-retry-count", "x-retry-attempt-count", "x-produce-time", "x-error-message"),
    is_exclusive=False,
)
DJANGO_KAFKA = Dialect(
    name="django-kafka",
    markers=(f"{_DEAD}TOPIC", "DEAD_LETTER_SUMMARY"),
    topic=(f"{_DEAD}TOPIC",),
    partition=(f"{_DEAD}PARTITION",),
    offset=(f"{_DEAD}OFFSET",),
    failed_at=("RETRY_TIMESTAMP",),
    text=("DEAD_LETTER_SUMMARY",),
    stack=("DEAD_LETTER_DETAIL",),
    strip_names=("DEAD_LETTER_*", "RETRY_MESSAGE*", "RETRY_TIMESTAMP"),
)
ARROYO = Dialect(
    name="arroyo",
    markers=("original_partition",),
    required_names=("original_offset",),
    partition=("original_partition",),
    offset=("original_offset",),
    strip_names=("original_partition", "original_offset"),
    is_exclusive=False,
)
DIALECTS = (
    SMALLRYE,
    KARAFKA,
    WATERMILL,
    WOLVERINE,
    MASSTRANSIT,
    NSERVICEBUS,
    BRIGHTER,
    SILVERBACK,
    CRONSUMER,
    DJANGO_KAFKA,
    ARROYO,
)
