"""Read envelopes that are a JSON object, in the value or in the fields of a Redis entry."""

from dataclasses import replace

import msgspec

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields
from deadletter.core.letters import Category, Confidence, Envelope, Headers, Message

Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(Document)
_BODIES = ("body", "task", "payload", "original_message", "originalMessage", "original_value", "originalValue")
_ERRORS = ("last_error", "error", "error_message", "errorMessage", "last_error_type", "error_type", "errorType")
_DELIVERY_FIELDS = (
    "source_mailbox",
    "original_topic",
    "originalTopic",
    "source_topic",
    "delivery_count",
    "total_attempts",
    "retry_count",
    "retryCount",
    "dead_lettered_at",
    "failed_at",
    "failedAt",
)


def decode_object(value: bytes | None) -> Document:
    """Return the members of a JSON object as raw bytes; empty if the value is not an object."""
    if not value or value[:1] not in b"{ \t\r\n":
        return {}
    try:
        return _DOCUMENT.decode(value)
    except (ValueError, RecursionError):
        return {}


def _header_value(raw: msgspec.Raw) -> bytes | None:
    """Return a JSON member as a header would hold it: text without quotes, numbers as digits, null as None."""
    content = bytes(raw)
    if content == b"null":
        return None
    if content[:1] != b'"':
        return content
    try:
        return msgspec.json.decode(content, type=str).encode("utf-8", "replace")
    except ValueError:  # the decoder of the object does not validate strings
        return content


def as_headers(document: Document, prefix: str = "") -> Headers:
    """Return the members of a JSON object as headers with this prefix."""
    return tuple((prefix + name, _header_value(raw)) for name, raw in document.items())


def _has_envelope_fields(names: dict[str, bytes | None]) -> bool:
    return all(any(name in names for name in group) for group in (_BODIES, _ERRORS, _DELIVERY_FIELDS))


def _is_json_envelope(fields: HeaderFields) -> bool:
    return _has_envelope_fields(fields.last)


def _read_json_value(fields: HeaderFields) -> Envelope | None:
    inner = HeaderFields(Message(None, None, as_headers(decode_object(fields.message.value))), fields.place)
    return JSON_ENVELOPE.read(inner) if _has_envelope_fields(inner.last) else None


def _set_named_category(fields: HeaderFields, envelope: Envelope) -> None:
    named = (fields.text(("error_category", "errorCategory")) or "").capitalize()
    if named in Category.__members__:
        envelope.failure.category = Category(named)


def _restore_envelope(message: Message) -> Message:
    """Replace the value by the body, from the JSON value or from the field of a Redis entry."""
    fields = dict(as_headers(decode_object(message.value))) if message.value is not None else dict(message.headers)
    for name in _BODIES:
        if fields.get(name) is not None:
            return replace(message, value=fields[name])
    raise DialectError("the letter contains no body")


JSON_ENVELOPE = Dialect(
    name="json-envelope",
    markers=("dead_lettered_at", "source_mailbox", "task_id", "last_error"),
    detect=_is_json_envelope,
    confidence=Confidence.Likely,
    topic=("source_mailbox", "original_topic", "originalTopic", "source_topic"),
    partition=("original_partition", "originalPartition"),
    offset=("original_offset", "originalOffset"),
    attempts=("delivery_count", "total_attempts", "retry_count", "retryCount", "attempts"),
    first_failed_at=("first_received_at",),
    failed_at=("dead_lettered_at", "failed_at", "failedAt", "timestamp"),
    type=("last_error_type", "error_type", "errorType"),
    text=("last_error", "error", "error_message", "errorMessage", "reason"),
    stack=("stack_trace", "stackTrace"),
    id=("message_id", "task_id", "messageId", "id"),
    strip_names=(
        *_BODIES,
        *_ERRORS,
        *_DELIVERY_FIELDS,
        "first_received_at",
        "message_id",
        "request_id",
        "reply_to",
        "trace_id",
        "task_id",
        "max_retries",
        "retry_policy",
        "next_retry_at",
        "status",
        "error_category",
        "updated_at",
    ),
    is_exclusive=False,
    post_process=_set_named_category,
    read_value=_read_json_value,
    restore=_restore_envelope,
)
