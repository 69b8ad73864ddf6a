"""Envelopes in Avro values: Kstreamplify's KafkaError and bakdata's dead letter, in the registry's wire format."""

from dataclasses import dataclass, replace

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields, likely_envelope, truncated_failure
from deadletter.core.dialects.binary import BinaryFormatError, ByteReader
from deadletter.core.letters import Envelope, Message, Origin

_HEAD = 5  # a nought and the schema's number


@dataclass(slots=True)
class _Found:
    topic: str | None
    partition: int | None
    offset: int | None
    kind: str
    text: str
    stack: str
    group: str | None = None
    key: bytes | None = None
    value: bytes | None = None


def _body(value: bytes | None) -> ByteReader:
    if not value or len(value) <= _HEAD or value[0] != 0:
        raise BinaryFormatError("not in the registry's wire format")
    return ByteReader(value, _HEAD)


def _maybe_text(reader: ByteReader) -> str | None:
    return reader.read_text() if reader.read_is_set() else None


def _maybe_bytes(reader: ByteReader) -> bytes | None:
    return reader.read_bytes() if reader.read_is_set() else None


def _maybe_number(reader: ByteReader) -> int | None:
    return reader.read_zigzag() if reader.read_is_set() else None


def _end(reader: ByteReader) -> None:
    if not reader.is_done:
        raise BinaryFormatError("something follows")


def _kafka_error(value: bytes | None) -> _Found:
    reader = _body(value)
    cause, context, stack, _ = (_maybe_text(reader) for _ in range(4))
    raw = _maybe_bytes(reader)
    offset, partition, topic = reader.read_zigzag(), reader.read_zigzag(), reader.read_text()
    if not topic or partition < 0:
        raise BinaryFormatError("no origin")
    kind, _, text = (cause or "").partition(": ")
    found = _Found(topic, partition, offset, kind, text or context or "", stack or "", value=raw)
    if not reader.is_done:
        found.group = _maybe_text(reader)
    if not reader.is_done:  # newer: processorNodeId, taskId, sourceRawKey, sourceRawValue
        _maybe_text(reader), _maybe_text(reader)
        found.key, found.value = _maybe_bytes(reader), _maybe_bytes(reader)
    _end(reader)
    return found


def _bakdata(value: bytes | None) -> _Found:
    reader = _body(value)
    _maybe_text(reader)
    topic, partition, offset = _maybe_text(reader), _maybe_number(reader), _maybe_number(reader)
    description = reader.read_text()
    kind, text, stack = (_maybe_text(reader) for _ in range(3))
    if not reader.is_done:  # newer: input_timestamp
        _maybe_number(reader)
    _end(reader)
    return _Found(topic, partition, offset, kind or "", text or description, stack or "")


def _envelope(name: str, found: _Found) -> Envelope:
    envelope = likely_envelope(
        name, Origin(found.topic, found.partition, found.offset), truncated_failure(found.kind, found.text, found.stack)
    )
    envelope.group = found.group
    return envelope


def _read_kstreamplify(fields: HeaderFields) -> Envelope | None:
    try:
        return _envelope("kstreamplify", _kafka_error(fields.message.value))
    except BinaryFormatError:
        return None


def _restore_kstreamplify(message: Message) -> Message:
    try:
        found = _kafka_error(message.value)
    except BinaryFormatError:
        raise DialectError("the value is no KafkaError") from None
    if found.value is None:
        raise DialectError("the KafkaError does not hold the original bytes")
    return replace(message, key=message.key if found.key is None else found.key, value=found.value)


def _read_bakdata(fields: HeaderFields) -> Envelope | None:
    try:
        return _envelope("bakdata-avro", _bakdata(fields.message.value))
    except BinaryFormatError:
        return None


def _restore_bakdata(_: Message) -> Message:
    raise DialectError("the dead letter holds its input as a description, not as the original bytes")


KSTREAMPLIFY = Dialect(
    name="kstreamplify",
    read_value=_read_kstreamplify,
    restore=_restore_kstreamplify,
    derives_topic=True,
    derives_offset=True,
)
BAKDATA_AVRO = Dialect(
    name="bakdata-avro", read_value=_read_bakdata, restore=_restore_bakdata, derives_topic=True, derives_offset=True
)
DIALECTS = (KSTREAMPLIFY, BAKDATA_AVRO)
