"""What a dialect is: the names it writes, how it is recognised, how its letter is read and its message restored."""

from collections.abc import Callable
from dataclasses import dataclass

from deadletter.core.failures import MAX_MESSAGE_CHARS, MAX_STACK_CHARS, MAX_TYPE_CHARS, classify_error, classify_status
from deadletter.core.header_values import parse_number, parse_position, parse_time
from deadletter.core.letters import Confidence, Envelope, Failure, Message, Origin, Place
from deadletter.core.truncate import truncate

AUTO = "Auto"  # detect the dialect
HeaderNames = tuple[str, ...]
_TEXT_BYTES = 4 * MAX_STACK_CHARS


class DialectError(ValueError):
    """The original message cannot be restored from this letter; the text carries nothing of it."""


class HeaderFields:
    """The headers of one letter: the last of each name, and the first where a name was written more than once."""

    __slots__ = ("first", "last", "message", "place", "repeated")

    def __init__(self, message: Message, place: Place) -> None:
        headers = message.headers
        self.message = message
        self.place = place
        self.last: dict[str, bytes | None] = dict(headers)
        self.repeated = len(self.last) != len(headers)
        self.first: dict[str, bytes | None] = dict(reversed(headers)) if self.repeated else self.last

    def text(self, names: HeaderNames, limit: int = MAX_TYPE_CHARS) -> str | None:
        """The text of the first of these names that has one; `null` as a word is none."""
        return first_text(self.last, names, limit)

    def number(self, names: HeaderNames) -> int | None:
        """The number of the first of these names that has one."""
        return first_value(self.last, names, parse_number)

    def time(self, names: HeaderNames) -> int | None:
        """The time of the first of these names that has one."""
        return first_value(self.last, names, parse_time)


def first_text(fields: dict[str, bytes | None], names: HeaderNames, limit: int = MAX_TYPE_CHARS) -> str | None:
    """The text of the first of these names that has one; `null` as a word is none."""
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
    for name in names:
        value = read(fields.get(name))
        if value is not None:
            return value
    return None


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialect:
    """One system's way to write an envelope. Names are tried in order; the first that has a value counts.

    `markers`: any of them makes it a candidate, `needs` must all be there too, `claims` says the last word.
    `strips`: what a replay takes out; a trailing `*` means every name that begins so. `unmistakable`: no application
    writes such names, so they are taken out of letters of other dialects as well.
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
    cause: HeaderNames = ()  # the exception that tells the category, when the type is only a wrapper
    text: HeaderNames = ()
    stack: HeaderNames = ()
    status: HeaderNames = ()
    reason: HeaderNames = ()
    replays: HeaderNames = ()
    id: HeaderNames = ()
    strip_names: HeaderNames = ()
    is_exclusive: bool = True
    derives_topic: bool = False  # the topic comes from a key, a value or the stream's name, not from a header
    derives_offset: bool = False
    post_process: Callable[[HeaderFields, Envelope], None] | None = None  # what a table of names cannot say
    read_value: Callable[[HeaderFields], Envelope | None] | None = None  # reads key or value; None: not this dialect
    restore: Callable[[Message], Message] | None = None  # the message as it was before it failed

    @property
    def names_topic(self) -> bool:
        """True if its letters may name the topic they came from."""
        return bool(self.topic) or self.derives_topic

    @property
    def names_offset(self) -> bool:
        """True if its letters may name the offset they came from."""
        return bool(self.offset) or self.derives_offset

    def matches(self, fields: HeaderFields) -> bool:
        """Does this letter speak the dialect? Asked only when a marker is there."""
        names = fields.last
        return all(name in names for name in self.required_names) and (self.detect is None or self.detect(fields))

    def read(self, fields: HeaderFields) -> Envelope:
        """The envelope of a letter in this dialect, as far as it is written."""
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
        """As `read`, but only the id, the origin's place, the failure and the replays are right."""
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
        kind = (fields.text(self.type) or "") if self.type else ""
        status = fields.number(self.status) if self.status else None
        cause = (fields.text(self.cause) if self.cause else None) or kind
        return Failure(
            kind,
            (fields.text(self.text, MAX_MESSAGE_CHARS) or "") if self.text else "",
            classify_status(status) if status and status >= 300 and not cause else classify_error(cause),
            status,
            (fields.text(self.stack, MAX_STACK_CHARS) or "") if self.stack else "",
        )


def truncated_failure(kind: str, text: str, stack: str = "") -> Failure:
    """A failure that was found in a value, bounded and classified."""
    return Failure(
        truncate(kind, MAX_TYPE_CHARS),
        truncate(text, MAX_MESSAGE_CHARS),
        classify_error(kind),
        None,
        truncate(stack, MAX_STACK_CHARS),
    )


def likely_envelope(name: str, origin: Origin, failure: Failure) -> Envelope:
    """An envelope that was found in a key or value."""
    return Envelope(dialect=name, confidence=Confidence.Likely, origin=origin, hop=origin, failure=failure)
