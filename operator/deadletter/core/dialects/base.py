"""Dialect: header names that one system writes, and how its letters are detected, read and restored."""

from collections.abc import Callable
from dataclasses import dataclass

from deadletter.core.failure_categories import (
    MAX_MESSAGE_CHARS,
    MAX_STACK_CHARS,
    MAX_TYPE_CHARS,
    classify_error,
    classify_status,
)
from deadletter.core.header_values import parse_number, parse_position, parse_time
from deadletter.core.letters import Confidence, Envelope, Failure, Message, Origin, Place
from deadletter.core.truncate import truncate

AUTO = "Auto"  # detect the dialect
HeaderNames = tuple[str, ...]
_TEXT_BYTES = 4 * MAX_STACK_CHARS


class DialectError(ValueError):
    """The original message cannot be restored from this letter; the text contains no part of the message."""


class HeaderFields:
    """The headers of one letter by name: the last value of each, and the first if a name occurs more than once."""

    __slots__ = ("first", "last", "message", "place", "repeated")

    def __init__(self, message: Message, place: Place) -> None:
        headers = message.headers
        self.message = message
        self.place = place
        self.last: dict[str, bytes | None] = dict(headers)
        self.repeated = len(self.last) != len(headers)
        self.first: dict[str, bytes | None] = dict(reversed(headers)) if self.repeated else self.last

    def text(self, names: HeaderNames, limit: int = MAX_TYPE_CHARS) -> str | None:
        """Return the text of the first of these headers that has one; the text `null` counts as none."""
        return first_text(self.last, names, limit)

    def number(self, names: HeaderNames) -> int | None:
        """Return the number in the first of these headers that has one."""
        return first_value(self.last, names, parse_number)

    def time(self, names: HeaderNames) -> int | None:
        """Return the time in the first of these headers that has one, in ms."""
        return first_value(self.last, names, parse_time)


def first_text(fields: dict[str, bytes | None], names: HeaderNames, limit: int = MAX_TYPE_CHARS) -> str | None:
    """Return the text of the first of these headers that has one; the text `null` counts as none."""
    for name in names:
        raw = fields.get(name)
        if raw:
            text = raw[:_TEXT_BYTES].decode("utf-8", "replace")
            if text != "null":
                return truncate(text, limit)
    return None


def first_value(
    fields: dict[str, bytes | None], names: HeaderNames, read: Callable[[bytes | None], int | None]
) -> int | None:
    """Return the first value that `read` finds in these headers, in the order of names."""
    for name in names:
        value = read(fields.get(name))
        if value is not None:
            return value
    return None


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialect:
    """The headers in which one system writes an envelope; of several names, the first that has a value counts.

    A letter is a candidate if it has one of the `markers`; it matches if it also has all `required_names` and `detect`
    returns True. A replay removes the headers in `strip_names`; a trailing `*` is a prefix match. If `is_exclusive`,
    no application writes such names, so they are also removed from letters of other dialects.
    """

    name: str
    markers: HeaderNames = ()
    required_names: HeaderNames = ()
    detect: Callable[[HeaderFields], bool] | None = None
    confidence: Confidence = Confidence.Certain
    topic: HeaderNames = ()
    partition: HeaderNames = ()
    offset: HeaderNames = ()
    timestamp: HeaderNames = ()
    group: HeaderNames = ()
    attempts: HeaderNames = ()
    first_failed_at: HeaderNames = ()
    failed_at: HeaderNames = ()
    type: HeaderNames = ()
    cause: HeaderNames = ()  # the exception that determines the category, if the type is only a wrapper
    text: HeaderNames = ()
    stack: HeaderNames = ()
    status: HeaderNames = ()
    reason: HeaderNames = ()
    replays: HeaderNames = ()
    id: HeaderNames = ()
    strip_names: HeaderNames = ()
    is_exclusive: bool = True
    derives_topic: bool = False  # `topic` is empty, because the topic is read from the key or value
    derives_offset: bool = False  # `offset` is empty, because the offset is read from the key, value or id
    post_process: Callable[[HeaderFields, Envelope], None] | None = None  # fix what the table of names cannot express
    read_value: Callable[[HeaderFields], Envelope | None] | None = (
        None  # read key or value; returns None for another dialect
    )
    restore: Callable[[Message], Message] | None = None  # return the message as it was before it failed

    @property
    def names_topic(self) -> bool:
        """True if its letters may name the topic they came from."""
        return bool(self.topic) or self.derives_topic

    @property
    def names_offset(self) -> bool:
        """True if its letters may name the offset they came from."""
        return bool(self.offset) or self.derives_offset

    def matches(self, fields: HeaderFields) -> bool:
        """True if the letter is written in this dialect; called only if it has one of the markers."""
        names = fields.last
        return all(name in names for name in self.required_names) and (self.detect is None or self.detect(fields))

    def read(self, fields: HeaderFields) -> Envelope:
        """Return the envelope of a letter in this dialect, as far as it is written."""
        hop = self._origin(fields.last)
        envelope = Envelope(
            dialect=self.name,
            confidence=self.confidence,
            origin=self._origin(fields.first) if fields.repeated else hop,
            hop=hop,
            group=fields.text(self.group) if self.group else None,
            attempts=max(fields.number(self.attempts) or 0, 0) if self.attempts else 0,
            first_failed_at=fields.time(self.first_failed_at) if self.first_failed_at else None,
            failed_at=fields.time(self.failed_at) if self.failed_at else None,
            failure=self._failure(fields),
            reason=(fields.text(self.reason) or "") if self.reason else "",
            replays=max(fields.number(self.replays) or 0, 0) if self.replays else 0,
            id=fields.text(self.id) if self.id else None,
        )
        if self.post_process:
            self.post_process(fields, envelope)
        return envelope

    def read_summary(self, fields: HeaderFields) -> Envelope:
        """Return the envelope with only id, origin, failure and replays read, which is faster than `read`."""
        hop = self._place(fields.last)
        envelope = Envelope(
            dialect=self.name,
            confidence=self.confidence,
            origin=self._place(fields.first) if fields.repeated else hop,
            hop=hop,
            failure=self._failure(fields),
            replays=max(fields.number(self.replays) or 0, 0) if self.replays else 0,
            id=fields.text(self.id) if self.id else None,
        )
        if self.post_process:
            self.post_process(fields, envelope)
        return envelope

    def _place(self, values: dict[str, bytes | None]) -> Origin:
        return Origin(
            first_text(values, self.topic) if self.topic else None,
            first_value(values, self.partition, parse_position) if self.partition else None,
            first_value(values, self.offset, parse_position) if self.offset else None,
        )

    def _origin(self, values: dict[str, bytes | None]) -> Origin:
        origin = self._place(values)
        origin.timestamp = first_value(values, self.timestamp, parse_time) if self.timestamp else None
        return origin

    def _failure(self, fields: HeaderFields) -> Failure:
        error_type = (fields.text(self.type) or "") if self.type else ""
        status = fields.number(self.status) if self.status else None
        cause = (fields.text(self.cause) if self.cause else None) or error_type
        return Failure(
            error_type,
            (fields.text(self.text, MAX_MESSAGE_CHARS) or "") if self.text else "",
            classify_status(status) if status and status >= 300 and not cause else classify_error(cause),
            status,
            (fields.text(self.stack, MAX_STACK_CHARS) or "") if self.stack else "",
        )


def truncated_failure(error_type: str, text: str, stack: str = "") -> Failure:
    """Return a failure found in a value, with truncated texts and its category."""
    return Failure(
        truncate(error_type, MAX_TYPE_CHARS),
        truncate(text, MAX_MESSAGE_CHARS),
        classify_error(error_type),
        None,
        truncate(stack, MAX_STACK_CHARS),
    )


def likely_envelope(name: str, origin: Origin, failure: Failure) -> Envelope:
    """Return an envelope found in a key or value."""
    return Envelope(dialect=name, confidence=Confidence.Likely, origin=origin, hop=origin, failure=failure)
