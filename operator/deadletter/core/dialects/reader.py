"""Detect the dialect of a letter, read its envelope and restore its original message.

Detection goes from the most specific marker to generic names. Keys and values are read only if the queue allows it. A
queue may pin one dialect by name.
"""

from collections.abc import Callable
from dataclasses import replace

from deadletter.core import headers
from deadletter.core.dialects.base import AUTO, Dialect, HeaderFields
from deadletter.core.dialects.registry import BY_NAME, DIALECTS, GENERIC_RANK, NONE, RANKS_BY_MARKER, VALUE_DIALECTS
from deadletter.core.dialects.strip_headers import strip_headers
from deadletter.core.letters import Confidence, Envelope, Letter, Message, Place

OUR_MARKERS = frozenset(headers.DETECTION_HEADERS)  # it comes first and needs no further check
EnvelopeReader = Callable[[Dialect, HeaderFields], Envelope]


def read_letter(
    message: Message, place: Place, dialect: str = AUTO, read_values: bool = False, origin: str | None = None
) -> Letter:
    """Return the message as a letter with its envelope."""
    return Letter(message, place, read_envelope(message, place, dialect, read_values, origin))


def read_envelope(
    message: Message, place: Place, dialect: str = AUTO, read_values: bool = False, origin: str | None = None
) -> Envelope:
    """Return the envelope of a message; malformed bytes never raise. `origin` is the topic if the letter names none.

    ValueError for a dialect that is neither Auto nor one of DIALECT_NAMES.
    """
    return _envelope(HeaderFields(message, place), dialect, read_values, origin, _read)


def read_letter_summary(
    message: Message,
    place: Place,
    dialect: str = AUTO,
    read_values: bool = False,
    origin: str | None = None,
    to_send: bool = True,
) -> Letter:
    """Return the letter with only dialect, origin's topic, error type, message and replays read.

    That is enough for statistics and takes a third of the time of `read_letter`. With `to_send`, id and origin's
    partition and offset are read, too.
    """
    fields = dict(message.headers)
    if dialect != AUTO or OUR_MARKERS.isdisjoint(fields):
        return Letter(
            message, place, _envelope(HeaderFields(message, place), dialect, read_values, origin, _read_summary)
        )
    # Most letters have our own headers, so no other dialect needs to be checked.
    if not to_send:
        return Letter(message, place, headers.read_for_count(fields, origin))
    envelope = headers.read_summary(fields)
    if origin is not None:
        _set_missing_topic(envelope, origin)
    return Letter(message, place, envelope)


def _envelope(
    fields: HeaderFields, dialect: str, read_values: bool, origin: str | None, read: EnvelopeReader
) -> Envelope:
    envelope = _detect(fields, read_values, read) if dialect == AUTO else _read_pinned(fields, dialect, read)
    last = fields.last
    if headers.REPLAYS in last or headers.REPLAY in last:
        envelope.replays = max(envelope.replays, headers.read_replays(last))
        envelope.replay = fields.text((headers.REPLAY,))
    if origin is not None:
        _set_missing_topic(envelope, origin)
    return envelope


def _set_missing_topic(envelope: Envelope, topic: str) -> None:
    if envelope.origin.topic is None:
        envelope.origin = replace(envelope.origin, topic=topic)
    if envelope.hop.topic is None:
        envelope.hop = replace(envelope.hop, topic=topic)


def _detect(fields: HeaderFields, read_values: bool, read: EnvelopeReader) -> Envelope:
    rank = _rank_by_headers(fields)
    if rank is None or rank == GENERIC_RANK:
        found = _read_from_value(fields) if read_values else None
        if found is not None:
            return found
    return read(DIALECTS[rank] if rank is not None else NONE, fields)


def _rank_by_headers(fields: HeaderFields) -> int | None:
    """Return the rank of the most specific dialect that matches the headers."""
    if not OUR_MARKERS.isdisjoint(fields.last):
        return 0
    ranks = {rank for name in fields.last if name in RANKS_BY_MARKER for rank in RANKS_BY_MARKER[name]}
    for rank in sorted(ranks):
        if DIALECTS[rank].matches(fields):
            return rank
    return None


def _read_from_value(fields: HeaderFields) -> Envelope | None:
    for dialect in VALUE_DIALECTS:
        found = dialect.read_value(fields) if dialect.read_value else None
        if found is not None:
            return found
    return None


def _read(dialect: Dialect, fields: HeaderFields) -> Envelope:
    if dialect.read_value is not None and not _is_in_headers(dialect, fields):
        return dialect.read_value(fields) or Envelope(dialect=dialect.name)
    return dialect.read(fields)


def _read_summary(dialect: Dialect, fields: HeaderFields) -> Envelope:
    if dialect.name == "ours":
        return headers.read_summary(fields.last)
    return _read(dialect, fields) if dialect.read_value is not None else dialect.read_summary(fields)


def _is_in_headers(dialect: Dialect, fields: HeaderFields) -> bool:
    return dialect.name != "ours" and any(marker in fields.last for marker in dialect.markers)


def _read_pinned(fields: HeaderFields, name: str, read: EnvelopeReader) -> Envelope:
    if name not in BY_NAME:
        raise ValueError("unknown dialect; `decode --list` prints all names")
    envelope = read(BY_NAME[name], fields)
    if envelope.confidence is not Confidence.Unknown or name in {"none", "kafka-connect-bare"}:
        envelope.confidence = Confidence.Pinned
    return envelope


def is_pointer(message: Message, envelope: Envelope) -> bool:
    """True if the letter only points to its origin: a share group that does not copy writes no key and value."""
    return envelope.dialect == "kafka-share-group" and message.key is None and message.value is None


def restore_payload(message: Message, envelope: Envelope) -> Message:
    """Return the message with its original key and value; DialectError if the letter does not contain them."""
    dialect = BY_NAME.get(envelope.dialect, NONE)
    return dialect.restore(message) if dialect.restore else message


def restore_message(message: Message, envelope: Envelope) -> Message:
    """Return the original message: key and value restored, and the envelope's headers removed.

    DialectError if the letter does not contain the original.
    """
    restored = restore_payload(message, envelope)
    return Message(restored.key, restored.value, strip_headers(restored.headers, envelope.dialect), restored.timestamp)
