"""Envelopes in JSON values, in CloudEvents attributes, and in the fields of a Redis entry."""

from base64 import b64decode
from contextlib import suppress
from dataclasses import replace

import msgspec

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields
from deadletter.core.failures import MAX_MESSAGE_CHARS, classify_status
from deadletter.core.letters import Category, Confidence, Envelope, Headers, Message, Place
from deadletter.core.truncate import truncate

Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(Document)
_KNATIVE = ("knativeerrordest", "knativeerrorcode", "knativeerrordata")
_BODIES = ("body", "task", "payload", "original_message", "originalMessage", "original_value", "originalValue")
_ERRORS = ("last_error", "error", "error_message", "errorMessage", "last_error_type", "error_type", "errorType")
_TRACES = (
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
_SUFFIXES = (".dlq", "-dlq")


def document_of(value: bytes | None) -> Document:
    """The members of a JSON object as raw bytes; empty when the value is none."""
    if not value or value[:1] not in b"{ \t\r\n":
        return {}
    try:
        return _DOCUMENT.decode(value)
    except (ValueError, RecursionError):
        return {}


def _plain(raw: msgspec.Raw) -> bytes | None:
    """A JSON member as a header would hold it: text without quotes, numbers as digits, null as none."""
    content = bytes(raw)
    if content == b"null":
        return None
    if content[:1] != b'"':
        return content
    try:
        return msgspec.json.decode(content, type=str).encode("utf-8", "replace")
    except ValueError:  # the document's decoder skips over texts without reading them
        return content


def _as_headers(document: Document, prefix: str = "") -> Headers:
    return tuple((prefix + name, _plain(raw)) for name, raw in document.items())


# --- json-envelope


def _is_envelope(names: dict[str, bytes | None]) -> bool:
    return all(any(name in names for name in family) for family in (_BODIES, _ERRORS, _TRACES))


def _claims_envelope(fields: HeaderFields) -> bool:
    return _is_envelope(fields.last)


def _sniff_envelope(fields: HeaderFields) -> Envelope | None:
    inner = HeaderFields(Message(None, None, _as_headers(document_of(fields.message.value))), fields.place)
    return JSON_ENVELOPE.read(inner) if _is_envelope(inner.last) else None


def _category(fields: HeaderFields, envelope: Envelope) -> None:
    named = (fields.text(("error_category", "errorCategory")) or "").capitalize()
    if named in Category.__members__:
        envelope.failure.category = Category(named)


def _restore_envelope(message: Message) -> Message:
    """The body: from the JSON value, or from the field of a Redis entry."""
    held = dict(_as_headers(document_of(message.value))) if message.value is not None else dict(message.headers)
    for name in _BODIES:
        if held.get(name) is not None:
            return replace(message, value=held[name])
    raise DialectError("the letter holds no body")


JSON_ENVELOPE = Dialect(
    name="json-envelope",
    markers=("dead_lettered_at", "source_mailbox", "task_id", "last_error"),
    detect=_claims_envelope,
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
        *_TRACES,
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
    post_process=_category,
    read_value=_sniff_envelope,
    restore=_restore_envelope,
)

# --- knative


def _sniff_knative(fields: HeaderFields) -> Envelope | None:
    document = document_of(fields.message.value)
    if "specversion" not in document or not any(name in document for name in _KNATIVE):
        return None
    return KNATIVE.read(HeaderFields(Message(None, None, _as_headers(document, "ce_")), fields.place))


def _decode_answer(_: HeaderFields, envelope: Envelope) -> None:
    failure = envelope.failure
    with suppress(ValueError):  # an older broker wrote it plainly
        failure.message = truncate(
            b64decode(failure.message, validate=True).decode("utf-8", "replace"), MAX_MESSAGE_CHARS
        )
    if failure.status is not None:
        failure.type = f"Http{failure.status}"
        failure.category = classify_status(failure.status)


def _restore_knative(message: Message) -> Message:
    """In structured mode the extensions leave the JSON value; every other member keeps its bytes."""
    document = document_of(message.value)
    gone = [name for name in document if name in _KNATIVE or name.startswith("kne-")]
    if "specversion" not in document or not gone:
        return message
    kept = (msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in document.items() if name not in gone)
    return replace(message, value=b"{" + b",".join(kept) + b"}")


KNATIVE = Dialect(
    name="knative",
    markers=tuple(f"ce_{name}" for name in _KNATIVE),
    group=("ce_knativeerrordest",),
    status=("ce_knativeerrorcode",),
    text=("ce_knativeerrordata",),
    id=("ce_id",),
    strip_names=("ce_knativeerror*", "ce_kne-*"),
    post_process=_decode_answer,
    read_value=_sniff_knative,
    restore=_restore_knative,
)

# --- redis-streams


def _is_stream(fields: HeaderFields) -> bool:
    return "times_delivered" in fields.last or fields.place.box.endswith(_SUFFIXES)


def _stream_origin(fields: HeaderFields, envelope: Envelope) -> None:
    """The stream's own name tells the origin, and the source id is its entry there."""
    box, origin = fields.place.box, envelope.origin
    if box.endswith(_SUFFIXES):
        origin.topic = origin.topic or box[:-4]
    ms, found, seq = (envelope.id or "").partition("-")
    if found and ms.isascii() and ms.isdigit() and seq.isascii() and seq.isdigit():
        origin.partition, origin.offset = 0, Place.from_entry_id(box, envelope.id or "").offset
    envelope.hop = origin


REDIS_STREAMS = Dialect(
    name="redis-streams",
    markers=("times_delivered", "source_id"),
    detect=_is_stream,
    confidence=Confidence.Likely,
    topic=("source_stream", "stream"),
    group=("group", "consumer_group"),
    attempts=("times_delivered", "delivery_count"),
    failed_at=("failed_at", "dead_lettered_at"),
    type=("error_type",),
    text=("error", "last_error"),
    id=("source_id",),
    strip_names=(
        "times_delivered",
        "delivery_count",
        "source_id",
        "idle",
        "source_stream",
        "error",
        "error_type",
        "last_error",
    ),
    is_exclusive=False,
    post_process=_stream_origin,
)
DIALECTS = (KNATIVE, JSON_ENVELOPE, REDIS_STREAMS)
