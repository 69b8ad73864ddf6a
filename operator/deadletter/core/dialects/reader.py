"""Dialects: how the many systems write an envelope, and how we read it.

Detection goes from the most specific marker to the generic names; keys and values are looked into only when the queue
allows it; a queue may pin one dialect by name.
"""

from collections.abc import Callable
from dataclasses import replace

from deadletter.core import headers
from deadletter.core.dialects.base import AUTO, Dialect, HeaderFields
from deadletter.core.dialects.registry import BY_NAME, GENERIC_RANK, RANKS_BY_MARKER, NONE, DIALECTS, VALUE_DIALECTS
from deadletter.core.dialects.strip_headers import strip_headers
from deadletter.core.letters import Confidence, Envelope, Letter, Message, Place

OUR_MARKERS = frozenset(headers.DETECTION_HEADERS)  # the first of the table, and it claims nothing more
EnvelopeReader = Callable[[Dialect, HeaderFields], Envelope]


def read_letter(
    message: Message, place: Place, dialect: str = AUTO, read_values: bool = False, origin: str | None = None
) -> Letter:
    """The message as a letter, with its envelope read."""
    return Letter(message, place, read_envelope(message, place, dialect, read_values, origin))


def read_envelope(
    message: Message, place: Place, dialect: str = AUTO, read_values: bool = False, origin: str | None = None
) -> Envelope:
    """What is known of the failure; never raises, whatever the bytes. `origin`: the topic when the letter names none.

    ValueError for a dialect that is neither Auto nor one of NAMES.
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
    """As `read_letter`, but only dialect, origin's topic, failure's words and replays are right.

    Enough to count the letter, at a third of the price; `to_send`: id and origin's place are right, too.
    """
    fields = dict(message.headers)
    if dialect != AUTO or OUR_MARKERS.isdisjoint(fields):
        return Letter(message, place, _envelope(HeaderFields(message, place), dialect, read_values, origin, _glance))
    # Most letters are ours, and nothing else need be asked.
    if not to_send:
        return Letter(message, place, headers.read_for_count(fields, origin))
    envelope = headers.read_summary(fields)
    if origin is not None:
        _name_origin(envelope, origin)
    return Letter(message, place, envelope)


def _envelope(
    fields: HeaderFields, dialect: str, read_values: bool, origin: str | None, read: EnvelopeReader
) -> Envelope:
    envelope = _detected(fields, read_values, read) if dialect == AUTO else _pinned(fields, dialect, read)
    last = fields.last
    if headers.REPLAYS in last or headers.REPLAY in last:
        envelope.replays = max(envelope.replays, headers.read_replays(last))
        envelope.replay = fields.text((headers.REPLAY,))
    if origin is not None:
        _name_origin(envelope, origin)
    return envelope


def _name_origin(envelope: Envelope, topic: str) -> None:
    if envelope.origin.topic is None:
        envelope.origin = replace(envelope.origin, topic=topic)
    if envelope.hop.topic is None:
        envelope.hop = replace(envelope.hop, topic=topic)


def _detected(fields: HeaderFields, read_values: bool, read: EnvelopeReader) -> Envelope:
    rank = _marked_rank(fields)
    if rank is None or rank == GENERIC_RANK:
        found = _sniffed(fields) if read_values else None
        if found is not None:
            return found
    return read(DIALECTS[rank] if rank is not None else NONE, fields)


def _marked_rank(fields: HeaderFields) -> int | None:
    """The most specific dialect whose marker is there and which claims the letter."""
    if not OUR_MARKERS.isdisjoint(fields.last):
        return 0
    ranks = {rank for name in fields.last if name in RANKS_BY_MARKER for rank in RANKS_BY_MARKER[name]}
    for rank in sorted(ranks):
        if DIALECTS[rank].matches(fields):
            return rank
    return None


def _sniffed(fields: HeaderFields) -> Envelope | None:
    for dialect in VALUE_DIALECTS:
        found = dialect.read_value(fields) if dialect.read_value else None
        if found is not None:
            return found
    return None


def _read(dialect: Dialect, fields: HeaderFields) -> Envelope:
    if dialect.read_value is not None and not _is_in_headers(dialect, fields):
        return dialect.read_value(fields) or Envelope(dialect=dialect.name)
    return dialect.read(fields)


def _glance(dialect: Dialect, fields: HeaderFields) -> Envelope:
    if dialect.name == "ours":
        return headers.read_summary(fields.last)
    return _read(dialect, fields) if dialect.read_value is not None else dialect.read_summary(fields)


def _is_in_headers(dialect: Dialect, fields: HeaderFields) -> bool:
    return dialect.name != "ours" and any(marker in fields.last for marker in dialect.markers)


def _pinned(fields: HeaderFields, name: str, read: EnvelopeReader) -> Envelope:
    if name not in BY_NAME:
        raise ValueError("no such dialect; `decode --list` prints their names")
    envelope = read(BY_NAME[name], fields)
    if envelope.confidence is not Confidence.Unknown or name in {"none", "kafka-connect-bare"}:
        envelope.confidence = Confidence.Pinned
    return envelope


def is_pointer(message: Message, envelope: Envelope) -> bool:
    """Does the letter only point to its origin? A share group without copying writes neither key nor value."""
    return envelope.dialect == "kafka-share-group" and message.key is None and message.value is None


def restore_payload(message: Message, envelope: Envelope) -> Message:
    """Key and value as they were before it failed, headers untouched; DialectError when the letter does not hold it."""
    dialect = BY_NAME.get(envelope.dialect, NONE)
    return dialect.restore(message) if dialect.restore else message


def restore_message(message: Message, envelope: Envelope) -> Message:
    """The message as it was before it failed: key and value restored, the envelope's headers gone, all else untouched.

    DialectError when the letter does not hold it.
    """
    whole = restore_payload(message, envelope)
    return Message(whole.key, whole.value, strip_headers(whole.headers, envelope.dialect), whole.timestamp)
