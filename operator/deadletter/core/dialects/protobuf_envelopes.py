"""Read protobuf envelopes: Uber's DLQMetadata in the key, Pipestream's DlqMessage in the value."""

from dataclasses import replace

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields, likely_envelope, truncated_failure
from deadletter.core.dialects.wire_formats import (
    LENGTH,
    VARINT,
    BinaryFormatError,
    decode_utf8,
    read_protobuf,
    to_signed,
)
from deadletter.core.header_values import epoch_to_ms, time_in_range
from deadletter.core.letters import Envelope, Failure, Message, Origin

_UBER = {1: VARINT, 2: LENGTH, 3: VARINT, 4: VARINT, 5: VARINT, 6: LENGTH, 7: VARINT}
_PIPESTREAM = {1: LENGTH, 2: LENGTH, 3: LENGTH, 4: LENGTH, 6: LENGTH, 7: LENGTH}
_TIMESTAMP = {1: VARINT, 2: VARINT}


def _text(value: int | bytes | None) -> str:
    return decode_utf8(value) if isinstance(value, bytes) else ""


def _uber_key(key: bytes | None) -> dict[int, int | bytes]:
    found = read_protobuf(key or b"", _UBER)
    if not found.get(2):
        raise BinaryFormatError("the key names no topic")
    _text(found[2])
    return found


def _position(value: int | bytes | None) -> int:
    """Return the number; 0 if it is missing, because protobuf does not write zeros."""
    return max(to_signed(value) or 0, 0)


def _read_uber(fields: HeaderFields) -> Envelope | None:
    try:
        found = _uber_key(fields.message.key)
    except BinaryFormatError:
        return None
    origin = Origin(
        _text(found[2]), _position(found.get(3)), _position(found.get(4)), epoch_to_ms(to_signed(found.get(5)))
    )
    envelope = likely_envelope("uber-protobuf-key", origin, Failure())
    envelope.attempts = _position(found.get(1))
    return envelope


def _restore_uber(message: Message) -> Message:
    try:
        key = _uber_key(message.key).get(6)
    except BinaryFormatError:
        raise DialectError("the key is not a DLQMetadata") from None
    return replace(message, key=key if isinstance(key, bytes) else None)


def _pipestream_value(value: bytes | None) -> dict[int, int | bytes]:
    found = read_protobuf(value or b"", _PIPESTREAM)
    if not (1 in found and found.keys() & {2, 3} and found.keys() & {4, 6, 7}):
        raise BinaryFormatError("required fields are missing")
    for field in (2, 3, 6, 7):
        _text(found.get(field))
    return found


def _failed_at(value: int | bytes | None) -> int | None:
    if not isinstance(value, bytes):
        return None
    parts = read_protobuf(value, _TIMESTAMP)
    return time_in_range((to_signed(parts.get(1)) or 0) * 1_000 + (to_signed(parts.get(2)) or 0) // 1_000_000)


def _read_pipestream(fields: HeaderFields) -> Envelope | None:
    try:
        found = _pipestream_value(fields.message.value)
        failed_at = _failed_at(found.get(4))
    except BinaryFormatError:
        return None
    failure = truncated_failure(_text(found.get(2)), _text(found.get(3)))
    envelope = likely_envelope("pipestream", Origin(_text(found.get(7)) or None), failure)
    envelope.failed_at, envelope.group = failed_at, _text(found.get(6)) or None
    return envelope


def _restore_pipestream(message: Message) -> Message:
    try:
        payload = bytes(_pipestream_value(message.value)[1])
    except BinaryFormatError:
        raise DialectError("the value is not a DlqMessage") from None
    return replace(message, value=payload)


UBER = Dialect(
    name="uber-protobuf-key", read_value=_read_uber, restore=_restore_uber, derives_topic=True, derives_offset=True
)
PIPESTREAM = Dialect(name="pipestream", read_value=_read_pipestream, restore=_restore_pipestream, derives_topic=True)
DIALECTS = (UBER, PIPESTREAM)
