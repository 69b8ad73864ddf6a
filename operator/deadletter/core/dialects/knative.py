"""Read Knative envelopes: error attributes of a CloudEvent, in headers or in a structured JSON value."""

from base64 import b64decode
from contextlib import suppress
from dataclasses import replace

import msgspec

from deadletter.core.dialects.base import Dialect, HeaderFields
from deadletter.core.dialects.json_envelope import as_headers, decode_object
from deadletter.core.failure_categories import MAX_MESSAGE_CHARS, classify_status
from deadletter.core.letters import Envelope, Message
from deadletter.core.truncate import truncate

_ERROR_ATTRIBUTES = ("knativeerrordest", "knativeerrorcode", "knativeerrordata")


def _read_structured_event(fields: HeaderFields) -> Envelope | None:
    document = decode_object(fields.message.value)
    if "specversion" not in document or not any(name in document for name in _ERROR_ATTRIBUTES):
        return None
    return KNATIVE.read(HeaderFields(Message(None, None, as_headers(document, "ce_")), fields.place))


def _decode_error(_: HeaderFields, envelope: Envelope) -> None:
    failure = envelope.failure
    with suppress(ValueError):  # older brokers wrote it without base64
        failure.message = truncate(
            b64decode(failure.message, validate=True).decode("utf-8", "replace"), MAX_MESSAGE_CHARS
        )
    if failure.status is not None:
        failure.type = f"Http{failure.status}"
        failure.category = classify_status(failure.status)


def _restore_knative(message: Message) -> Message:
    """Remove the error attributes from a structured JSON value; every other member keeps its bytes."""
    document = decode_object(message.value)
    removed = [name for name in document if name in _ERROR_ATTRIBUTES or name.startswith("kne-")]
    if "specversion" not in document or not removed:
        return message
    kept = (msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in document.items() if name not in removed)
    return replace(message, value=b"{" + b",".join(kept) + b"}")


KNATIVE = Dialect(
    name="knative",
    markers=tuple(f"ce_{name}" for name in _ERROR_ATTRIBUTES),
    group=("ce_knativeerrordest",),
    status=("ce_knativeerrorcode",),
    text=("ce_knativeerrordata",),
    id=("ce_id",),
    strip_names=("ce_knativeerror*", "ce_kne-*"),
    post_process=_decode_error,
    read_value=_read_structured_event,
    restore=_restore_knative,
)
