"""Write the headers of Kafka Connect and Spring next to ours, so that their tools keep working."""

from collections.abc import Sequence
from struct import pack

from deadletter.core.letters import Envelope, Headers
from deadletter.core.truncate import truncate_bytes

COMPAT_NAMES = ("KafkaConnect", "Spring")
_MAX_VALUE_BYTES = 1_024


def compat_headers(names: Sequence[str], envelope: Envelope) -> Headers:
    """Return the headers of the named systems; ValueError for an unknown name."""
    headers: Headers = ()
    for name in names:
        if name == "KafkaConnect":
            headers += _connect(envelope)
        elif name == "Spring":
            headers += _spring(envelope)
        else:
            raise ValueError(f"compatHeaders supports {', '.join(COMPAT_NAMES)}")
    return headers


def _connect(envelope: Envelope) -> Headers:
    origin, failure = envelope.origin, envelope.failure
    fields = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "connector.name": envelope.group,
        "stage": "TASK_PUT",
        "exception.class.name": failure.type,
        "exception.message": failure.message,
        "exception.stacktrace": failure.stack or None,
    }
    return tuple(
        (f"__connect.errors.{name}", truncate_bytes(str(value), _MAX_VALUE_BYTES))
        for name, value in fields.items()
        if value is not None
    )


def _spring(envelope: Envelope) -> Headers:
    origin, failure = envelope.origin, envelope.failure
    headers: Headers = (
        ("kafka_dlt-exception-fqcn", truncate_bytes(failure.type, _MAX_VALUE_BYTES)),
        ("kafka_dlt-exception-message", truncate_bytes(failure.message, _MAX_VALUE_BYTES)),
    )
    if origin.topic is not None:
        headers += (("kafka_dlt-original-topic", truncate_bytes(origin.topic, _MAX_VALUE_BYTES)),)
    if origin.partition is not None and origin.partition < 1 << 31:
        headers += (("kafka_dlt-original-partition", pack(">i", origin.partition)),)
    if origin.offset is not None and origin.offset < 1 << 63:
        headers += (("kafka_dlt-original-offset", pack(">q", origin.offset)),)
    if origin.timestamp is not None:
        headers += (
            ("kafka_dlt-original-timestamp", pack(">q", origin.timestamp)),
            ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        )
    if envelope.group is not None:
        headers += (("kafka_dlt-original-consumer-group", truncate_bytes(envelope.group, _MAX_VALUE_BYTES)),)
    return headers
