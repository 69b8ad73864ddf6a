"""Envelopes in Avro values: Kstreamplify's KafkaError and bakdata's dead letter, in the registry's wire format."""

from dataclasses import dataclass, replace

from deadletter.core.dialects.base import Dialect, DialectError, Fields, envelope_of, failure_in
from deadletter.core.dialects.binary import Reader, WireError
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


def _body(value: bytes | None) -> Reader:
    if not value or len(value) <= _HEAD or value[0] != 0:
        raise WireError("not in the registry's wire format")
    return Reader(value, _HEAD)


def _maybe_text(reader: Reader) -> str | None:
    return reader.text() if reader.is_some() else None


def _maybe_bytes(reader: Reader) -> bytes | None:
    return reader.chunk() if reader.is_some() else None


def _maybe_number(reader: Reader) -> int | None:
    return reader.zigzag() if reader.is_some() else None


def _end(reader: Reader) -> None:
    if not reader.is_done:
        raise WireError("something follows")


def _kafka_error(value: bytes | None) -> _Found:
    reader = _body(value)
    cause, context, stack, _ = (_maybe_text(reader) for _ in range(4))
    raw = _maybe_bytes(reader)
    offset, partition, topic = reader.zigzag(), reader.zigzag(), reader.text()
    if not topic or partition < 0:
        raise WireError("no origin")
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
    description = reader.text()
    kind, text, stack = (_maybe_text(reader) for _ in range(3))
    if not reader.is_done:  # newer: input_timestamp
        _maybe_number(reader)
    _end(reader)
    return _Found(topic, partition, offset, kind or "", text or description, stack or "")


def _envelope(name: str, found: _Found) -> Envelope:
    envelope = envelope_of(
        name, Origin(found.topic, found.partition, found.offset), failure_in(found.kind, found.text, found.stack)
    )
    envelope.group = found.group
    return envelope


def _read_kstreamplify(fields: Fields) -> Envelope | None:
    try:
        return _envelope("kstreamplify", _kafka_error(fields.message.value))
    except WireError:
        return None


def _restore_kstreamplify(message: Message) -> Message:
    try:
        found = _kafka_error(message.value)
    except WireError:
        raise DialectError("the value is no KafkaError") from None
    if found.value is None:
        raise DialectError("the KafkaError does not hold the original bytes")
    return replace(message, key=message.key if found.key is None else found.key, value=found.value)


def _read_bakdata(fields: Fields) -> Envelope | None:
    try:
        return _envelope("bakdata-avro", _bakdata(fields.message.value))
    except WireError:
        return None


def _restore_bakdata(_: Message) -> Message:
    raise DialectError("the dead letter holds its input as a description, not as the original bytes")


KSTREAMPLIFY = Dialect(name="kstreamplify", sniff=_read_kstreamplify, restore=_restore_kstreamplify)
BAKDATA_AVRO = Dialect(name="bakdata-avro", sniff=_read_bakdata, restore=_restore_bakdata)
DIALECTS = (KSTREAMPLIFY, BAKDATA_AVRO)
