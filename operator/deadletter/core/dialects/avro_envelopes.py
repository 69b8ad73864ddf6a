"""Read Avro envelopes in the schema registry's wire format: Kstreamplify's KafkaError, bakdata's dead letter."""

from dataclasses import dataclass, replace

from deadletter.core.dialects.base import Dialect, DialectError, HeaderFields, likely_envelope, truncated_failure
from deadletter.core.dialects.wire_formats import BinaryFormatError, ByteReader
from deadletter.core.letters import Envelope, Message, Origin

_HEADER_BYTES = 5  # a zero byte and the schema id


@dataclass(slots=True)
class _ErrorRecord:
    topic: str | None
    partition: int | None
    offset: int | None
    kind: str
    text: str
    stack: str
    group: str | None = None
    key: bytes | None = None
    value: bytes | None = None


def _open_record(value: bytes | None) -> ByteReader:
    if not value or len(value) <= _HEADER_BYTES or value[0] != 0:
        raise BinaryFormatError("the value has no header of a schema registry (a zero byte, then a schema id)")
    return ByteReader(value, _HEADER_BYTES)


def _optional_text(reader: ByteReader) -> str | None:
    return reader.read_text() if reader.read_is_set() else None


def _optional_bytes(reader: ByteReader) -> bytes | None:
    return reader.read_bytes() if reader.read_is_set() else None


def _optional_number(reader: ByteReader) -> int | None:
    return reader.read_zigzag() if reader.read_is_set() else None


def _expect_end(reader: ByteReader) -> None:
    if not reader.is_done:
        raise BinaryFormatError("unexpected bytes after the record")


def _read_kafka_error(value: bytes | None) -> _ErrorRecord:
    reader = _open_record(value)
    cause, context, stack, _ = (_optional_text(reader) for _ in range(4))
    raw = _optional_bytes(reader)
    offset, partition, topic = reader.read_zigzag(), reader.read_zigzag(), reader.read_text()
    if not topic or partition < 0:
        raise BinaryFormatError("the record names no origin")
    kind, _, text = (cause or "").partition(": ")
    found = _ErrorRecord(topic, partition, offset, kind, text or context or "", stack or "", value=raw)
    if not reader.is_done:
        found.group = _optional_text(reader)
    if not reader.is_done:  # newer: processorNodeId, taskId, sourceRawKey, sourceRawValue
        _optional_text(reader), _optional_text(reader)
        found.key, found.value = _optional_bytes(reader), _optional_bytes(reader)
    _expect_end(reader)
    return found


def _read_bakdata_record(value: bytes | None) -> _ErrorRecord:
    reader = _open_record(value)
    _optional_text(reader)
    topic, partition, offset = _optional_text(reader), _optional_number(reader), _optional_number(reader)
    description = reader.read_text()
    kind, text, stack = (_optional_text(reader) for _ in range(3))
    if not reader.is_done:  # newer: input_timestamp
        _optional_number(reader)
    _expect_end(reader)
    return _ErrorRecord(topic, partition, offset, kind or "", text or description, stack or "")


def _to_envelope(name: str, found: _ErrorRecord) -> Envelope:
    envelope = likely_envelope(
        name, Origin(found.topic, found.partition, found.offset), truncated_failure(found.kind, found.text, found.stack)
    )
    envelope.group = found.group
    return envelope


def _read_kstreamplify(fields: HeaderFields) -> Envelope | None:
    try:
        return _to_envelope("kstreamplify", _read_kafka_error(fields.message.value))
    except BinaryFormatError:
        return None


def _restore_kstreamplify(message: Message) -> Message:
    try:
        found = _read_kafka_error(message.value)
    except BinaryFormatError:
        raise DialectError("the value is not a KafkaError") from None
    if found.value is None:
        raise DialectError("the KafkaError does not contain the original bytes")
    return replace(message, key=message.key if found.key is None else found.key, value=found.value)


def _read_bakdata(fields: HeaderFields) -> Envelope | None:
    try:
        return _to_envelope("bakdata-avro", _read_bakdata_record(fields.message.value))
    except BinaryFormatError:
        return None


def _restore_bakdata(_: Message) -> Message:
    raise DialectError("the dead letter contains a description of its input, not the original bytes")


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
