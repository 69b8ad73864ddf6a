"""Write and read our own `dlq-*` headers, and rename spoofed ones.

They are overwritten, never appended. Every field is truncated, so that all of them together stay below 8 KiB.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from deadletter.core import times
from deadletter.core.compat_headers import compat_headers
from deadletter.core.fingerprint import normalise_message
from deadletter.core.header_values import parse_number, parse_position
from deadletter.core.letters import (
    SEQUENCE_MASK,
    Category,
    Confidence,
    Envelope,
    Failure,
    Headers,
    Message,
    Origin,
    Place,
)
from deadletter.core.truncate import truncate_bytes

ID = "dlq-id"
ORIGIN_TOPIC = "dlq-origin-topic"
ORIGIN_PARTITION = "dlq-origin-partition"
ORIGIN_OFFSET = "dlq-origin-offset"
ORIGIN_TIMESTAMP = "dlq-origin-timestamp"
GROUP = "dlq-group"
ATTEMPTS = "dlq-attempts"
FIRST_FAILED_AT = "dlq-first-failed-at"
FAILED_AT = "dlq-failed-at"
ERROR_TYPE = "dlq-error-type"
ERROR_MESSAGE = "dlq-error-message"
ERROR_CATEGORY = "dlq-error-category"
ERROR_STATUS = "dlq-error-status"
DUE_AT = "dlq-due-at"
REASON = "dlq-reason"
REPLAYS = "dlq-replays"
REPLAY = "dlq-replay"

REPLAY_HEADERS = (REPLAYS, REPLAY)
OUR_HEADERS = (
    ID,
    ORIGIN_TOPIC,
    ORIGIN_PARTITION,
    ORIGIN_OFFSET,
    ORIGIN_TIMESTAMP,
    GROUP,
    ATTEMPTS,
    FIRST_FAILED_AT,
    FAILED_AT,
    ERROR_TYPE,
    ERROR_MESSAGE,
    ERROR_CATEGORY,
    ERROR_STATUS,
    DUE_AT,
    REASON,
    *REPLAY_HEADERS,
)
# Every envelope that we write has at least one of them, and no other system writes them.
DETECTION_HEADERS = (ORIGIN_TOPIC, ERROR_CATEGORY)
SPOOFED_PREFIX = "x-orig-"
_MAX_BYTES = {ID: 1_024, ORIGIN_TOPIC: 512, GROUP: 512, ERROR_TYPE: 512, ERROR_MESSAGE: 3_072, REASON: 256, REPLAY: 256}
_MAX_TEXT_BYTES = max(_MAX_BYTES.values())  # longer values are not ours
_ENTRY_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
_OURS = frozenset(OUR_HEADERS)
_CATEGORIES = {category.value: category for category in Category}
_SPOOFABLE = _OURS - set(REPLAY_HEADERS)
_SENT = frozenset((ID, *REPLAY_HEADERS))


def add_headers(message: Message, envelope: Envelope, compat: Sequence[str] = ()) -> Message:
    """Return the message with our headers and those of the `compat` systems (KafkaConnect, Spring)."""
    compatible = compat_headers(compat, envelope)
    written = (*_our_headers(envelope), *compatible)
    names = _OURS.union(name for name, _ in compatible) if compatible else _OURS
    kept = tuple(header for header in message.headers if header[0] not in names)
    return Message(message.key, message.value, kept + written, message.timestamp)


def _our_headers(envelope: Envelope) -> Headers:
    origin, failure = envelope.origin, envelope.failure
    fields: Iterable[tuple[str, str | None]] = (
        (ID, envelope.id),
        (ORIGIN_TOPIC, origin.topic),
        (ORIGIN_PARTITION, _digits(origin.partition)),
        (ORIGIN_OFFSET, _offset_text(origin.offset)),
        (ORIGIN_TIMESTAMP, _moment(origin.timestamp)),
        (GROUP, envelope.group),
        (ATTEMPTS, str(envelope.attempts)),
        (FIRST_FAILED_AT, _moment(envelope.first_failed_at)),
        (FAILED_AT, _moment(envelope.failed_at)),
        (ERROR_TYPE, failure.type or None),
        (ERROR_MESSAGE, failure.message or None),
        (ERROR_CATEGORY, failure.category),
        (ERROR_STATUS, _digits(failure.status)),
        (DUE_AT, _moment(envelope.due_at)),
        (REASON, envelope.reason or None),
        (REPLAYS, str(envelope.replays) if envelope.replays else None),
        (REPLAY, envelope.replay),
    )
    return tuple((name, truncate_bytes(text, _MAX_BYTES.get(name, 64))) for name, text in fields if text is not None)


def _digits(value: int | None) -> str | None:
    return None if value is None else str(value)


def _offset_text(offset: int | None) -> str | None:
    return Place("", 0, offset).id if offset is not None and offset > SEQUENCE_MASK else _digits(offset)


def _moment(ms: int | None) -> str | None:
    return None if ms is None else times.render(ms)


def read_headers(fields: dict[str, bytes | None]) -> Envelope:
    """Return the envelope in these headers; missing ones get their defaults."""
    origin = Origin(
        _text(fields, ORIGIN_TOPIC),
        parse_position(fields.get(ORIGIN_PARTITION)),
        _offset(fields),
        _time(fields, ORIGIN_TIMESTAMP),
    )
    return Envelope(
        dialect="ours",
        confidence=Confidence.Certain,
        origin=origin,
        hop=origin,
        group=_text(fields, GROUP),
        attempts=max(parse_number(fields.get(ATTEMPTS)) or 0, 0),
        first_failed_at=_time(fields, FIRST_FAILED_AT),
        failed_at=_time(fields, FAILED_AT),
        failure=_failure(fields),
        reason=_text(fields, REASON) or "",
        due_at=_time(fields, DUE_AT),
        replays=read_replays(fields),
        replay=_text(fields, REPLAY),
        id=_text(fields, ID),
    )


def read_summary(fields: dict[str, bytes | None]) -> Envelope:
    """Return the envelope with only id, origin, error type and message, and replays read, which is faster."""
    origin = Origin(_text(fields, ORIGIN_TOPIC), parse_position(fields.get(ORIGIN_PARTITION)), _offset(fields))
    failure = Failure(_text(fields, ERROR_TYPE) or "", _text(fields, ERROR_MESSAGE) or "")
    envelope = Envelope("ours", Confidence.Certain, origin, origin, None, 0, None, None, failure)
    if REPLAYS in fields:
        envelope.replays = read_replays(fields)
    if ID in fields:
        envelope.id = _text(fields, ID)
    return envelope


def read_for_count(fields: dict[str, bytes | None], origin: str | None) -> Envelope:
    """Return the envelope with only what statistics need: the origin's topic, the failure's cause and the replays.

    It is cached and shared by letters with the same cause, so it must not be changed. `origin` is the topic if the
    headers name none.
    """
    topic, error_type, count = fields.get(ORIGIN_TOPIC), fields.get(ERROR_TYPE), fields.get(REPLAYS)
    message = normalise_message(fields.get(ERROR_MESSAGE) or b"")
    return _cached_for_count(
        topic and topic[:_MAX_TEXT_BYTES],
        error_type and error_type[:_MAX_TEXT_BYTES],
        message,
        count and count[:_MAX_TEXT_BYTES],
        origin,
    )


@lru_cache(maxsize=2_048)
def _cached_for_count(
    topic: bytes | None, error_type: bytes | None, message: bytes, replays: bytes | None, origin: str | None
) -> Envelope:
    envelope = read_summary({ORIGIN_TOPIC: topic, ERROR_TYPE: error_type, ERROR_MESSAGE: message, REPLAYS: replays})
    if envelope.origin.topic is None:
        envelope.origin.topic = origin
    return envelope


def _failure(fields: dict[str, bytes | None]) -> Failure:
    category = _text(fields, ERROR_CATEGORY) or ""
    return Failure(
        _text(fields, ERROR_TYPE) or "",
        _text(fields, ERROR_MESSAGE) or "",
        _CATEGORIES.get(category, Category.Transient),
        parse_number(fields.get(ERROR_STATUS)),
    )


def read_replays(fields: dict[str, bytes | None]) -> int:
    """Return how often the letter was replayed; 0 if the header is malformed."""
    return max(parse_number(fields.get(REPLAYS)) or 0, 0)


def _text(fields: dict[str, bytes | None], name: str) -> str | None:
    raw = fields.get(name)
    return None if raw is None else raw[:_MAX_TEXT_BYTES].decode("utf-8", "replace")


def _offset(fields: dict[str, bytes | None]) -> int | None:
    raw = fields.get(ORIGIN_OFFSET)
    if raw is None or raw.isdigit() or not _ENTRY_ID.fullmatch(raw):
        return parse_position(raw)
    return Place.from_entry_id("", raw.decode()).offset


def _time(fields: dict[str, bytes | None], name: str) -> int | None:
    text = _text(fields, name)
    try:
        return None if text is None else times.parse(text)
    except ValueError:
        return None


def rename_spoofed(message: Message) -> Message:
    """Rename `dlq-*` headers that an application set to `x-orig-dlq-*`; the replay count of a returned letter stays."""
    if _SPOOFABLE.isdisjoint(name for name, _ in message.headers):
        return message
    renamed = tuple((SPOOFED_PREFIX + name if name in _SPOOFABLE else name, value) for name, value in message.headers)
    return replace(message, headers=renamed)


def add_replay_headers(message: Message, id_: str, uid: str, replays: int) -> Message:
    """Return the message with its id, the uid of the Replay that sends it and how often it was replayed."""
    kept = [header for header in message.headers if header[0] not in _SENT]
    sent = (
        (ID, truncate_bytes(id_, _MAX_BYTES[ID])),
        (REPLAYS, b"%d" % replays),
        (REPLAY, truncate_bytes(uid, _MAX_BYTES[REPLAY])),
    )
    return Message(message.key, message.value, (*kept, *sent), message.timestamp)
