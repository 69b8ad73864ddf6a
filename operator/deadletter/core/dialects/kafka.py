"""Dialects of Apache Kafka: share groups, Connect, Streams, and systems that build on their header names."""

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields
from deadletter.core.letters import Confidence, Envelope, Message

_CONNECT = "__connect.errors."
_STREAMS = "__streams.errors."
_MQ_NAMES = tuple(f"{_CONNECT}{name}" for name in ("jms.message.id", "jms.timestamp", "mq.queue"))


def _keep_exception_class(_: HeaderFields, envelope: Envelope) -> None:
    """Keep only the class of `class: message`, which is the format of Throwable.toString."""
    envelope.failure.type = envelope.failure.type.partition(": ")[0]


def _strip_quotes(_: HeaderFields, envelope: Envelope) -> None:
    """Remove the quotes of JSON strings, which Connect's header converters write."""
    failure = envelope.failure
    failure.type, failure.message = failure.type.strip('"'), failure.message.strip('"')
    for origin in (envelope.origin, envelope.hop):
        origin.topic = origin.topic and origin.topic.strip('"')


def _require_wire_format(message: Message) -> Message:
    """Reject a value that the rule's action rewrote as JSON; the original has the schema registry's wire format."""
    if message.value and message.value[0] != 0:
        raise DialectError(
            "the rule rewrote the value as JSON; serialise it with the schema again before you replay it"
        )
    return message


def _require_payload(message: Message) -> Message:
    """Reject a letter without key and value: a share group that does not copy records writes only a pointer."""
    if message.key is None and message.value is None:
        raise DialectError("the letter only points to its origin and contains no payload")
    return message


SHARE_GROUP = Dialect(
    name="kafka-share-group",
    markers=("__dlq.errors.topic",),
    topic=("__dlq.errors.topic",),
    partition=("__dlq.errors.partition",),
    offset=("__dlq.errors.offset",),
    group=("__dlq.errors.group",),
    attempts=("__dlq.errors.delivery.count",),
    text=("__dlq.errors.message",),
    strip_names=("__dlq.errors.*",),
    restore=_require_payload,
)
KIP_1317 = Dialect(
    name="kip-1317-draft",
    markers=("_dlq.errors.disposition", "_dlq.errors.original.topic"),
    topic=("_dlq.errors.original.topic",),
    partition=("_dlq.errors.original.partition",),
    offset=("_dlq.errors.original.offset",),
    reason=("_dlq.errors.disposition",),
    strip_names=("_dlq.errors.*",),
)
IBM_MQ_SOURCE = Dialect(
    name="ibm-mq-source",
    markers=_MQ_NAMES,
    topic=(f"{_CONNECT}topic",),
    partition=(f"{_CONNECT}partition",),
    offset=(f"{_CONNECT}offset",),
    timestamp=(f"{_CONNECT}jms.timestamp",),
    group=(f"{_CONNECT}connector.name",),
    failed_at=(f"{_CONNECT}timestamp",),
    type=(f"{_CONNECT}exception.class.name", f"{_CONNECT}cause.class"),
    cause=(f"{_CONNECT}cause.class",),
    text=(f"{_CONNECT}exception.message", f"{_CONNECT}cause.message"),
    stack=(f"{_CONNECT}exception.stacktrace",),
    id=(f"{_CONNECT}jms.message.id",),
    strip_names=("__connect.errors.*",),
    post_process=_strip_quotes,
)
CONNECT = Dialect(
    name="kafka-connect",
    markers=(f"{_CONNECT}topic", f"{_CONNECT}exception.class.name", f"{_CONNECT}connector.name"),
    topic=(f"{_CONNECT}topic",),
    partition=(f"{_CONNECT}partition",),
    offset=(f"{_CONNECT}offset",),
    group=(f"{_CONNECT}connector.name",),
    type=(f"{_CONNECT}exception.class.name",),
    text=(f"{_CONNECT}exception.message",),
    stack=(f"{_CONNECT}exception.stacktrace",),
    strip_names=("__connect.errors.*",),
)
CONNECT_BARE = Dialect(name="kafka-connect-bare", confidence=Confidence.Unknown)
BAKDATA_STREAMS = Dialect(
    name="bakdata-streams",
    markers=(f"{_STREAMS}exception.class.name", f"{_STREAMS}exception.message", f"{_STREAMS}description"),
    topic=(f"{_STREAMS}topic",),
    partition=(f"{_STREAMS}partition",),
    offset=(f"{_STREAMS}offset",),
    type=(f"{_STREAMS}exception.class.name",),
    text=(f"{_STREAMS}exception.message", f"{_STREAMS}description"),
    stack=(f"{_STREAMS}exception.stack_trace",),
    strip_names=("__streams.errors.*",),
)
STREAMS = Dialect(
    name="kafka-streams",
    markers=(f"{_STREAMS}exception", f"{_STREAMS}message", f"{_STREAMS}stacktrace"),
    topic=(f"{_STREAMS}topic",),
    partition=(f"{_STREAMS}partition",),
    offset=(f"{_STREAMS}offset",),
    type=(f"{_STREAMS}exception",),
    text=(f"{_STREAMS}message",),
    stack=(f"{_STREAMS}stacktrace",),
    strip_names=("__streams.errors.*",),
    post_process=_keep_exception_class,
)
CONFLUENT_RULE = Dialect(
    name="confluent-rule",
    markers=("__rule.name",),
    topic=("__rule.topic",),
    text=("__rule.exception",),
    reason=("__rule.name",),
    strip_names=("__rule.*",),
    restore=_require_wire_format,
)
DIALECTS = (SHARE_GROUP, KIP_1317, IBM_MQ_SOURCE, CONNECT, CONNECT_BARE, BAKDATA_STREAMS, STREAMS, CONFLUENT_RULE)
