"""A message becomes a request: body = value, the rest in headers.

- `Dlq-Topic`, `Dlq-Partition`, `Dlq-Offset`, `Dlq-Timestamp`, `Dlq-Attempt`: where it FIRST came from, which try it is
- `Dlq-Key`: as it is when it is plain text, else base64 and `Dlq-Key-Encoding: base64`; a very long one is left out
- `Dlq-Null: true`: the value is null, not empty
- `Idempotency-Key`: names the message through all attempts, parkings, restarts and replays
- `ce_*` of a CloudEvent in binary mode become `ce-*`; `content-type`, `traceparent` and `tracestate` are always kept
- other message headers go along when a glob of `forwardHeaders` matches their name

What would break HTTP (framing headers, names that are no token, values with control characters) stays behind.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from urllib.parse import quote_from_bytes

from deadletter.core import times
from deadletter.core.letters import SEQUENCE_MASK, Message, Place

MAX_KEY_BYTES = 4 << 10
MAX_FORWARDED_BYTES = 8 << 10  # servers refuse heads of more than 8 to 16 KiB, or of more than about 100 headers
MAX_FORWARDED_HEADERS = 64
ALWAYS_FORWARDED = frozenset({"content-type", "traceparent", "tracestate"})
FRAMING_HEADERS = frozenset({"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "upgrade"})
NEVER_FORWARDED = FRAMING_HEADERS | {"idempotency-key", "transfer-encoding"}
UNSAFE = re.compile(r"[\x00-\x1f\x7f]")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
PLAIN = re.compile(rb"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
CONTENT_TYPE = b"Content-Type: application/octet-stream\r\n"
CLOUD_EVENT_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def idempotency_key(place: Place) -> str:
    """The name of a message by its first place: topic, partition and offset, or stream and entry id."""
    if place.offset > SEQUENCE_MASK:
        return f"{place.box}/{place.id}"
    return f"{place.box}/{place.partition}/{place.offset}"


@dataclass(slots=True, frozen=True)
class DeliveryMetadata:
    """What a request says of its message beside the message itself."""

    id: str
    origin: Place
    attempt: int
    timestamp: int | None = None  # of the message when it first came; without one the message has it


class RequestRenderer:
    """Makes the heads of requests to one target; what never changes is rendered once."""

    def __init__(
        self,
        method: str,
        path: str,
        authority: str,
        headers: Sequence[tuple[str, str]] = (),
        forward: Sequence[str] = (),
    ) -> None:
        fixed = "".join(f"{name}: {value}\r\n" for name, value in headers)
        start = f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: dlq-operator\r\n{fixed}"
        self._start = start.encode("latin-1", "replace")
        self._fixed = frozenset(name.lower() for name, _ in headers)
        self._usual = b"" if "content-type" in self._fixed else CONTENT_TYPE
        self._forward = re.compile("|".join(translate(glob.lower()) for glob in forward) or r"\Z.")
        self._chosen: dict[str, bool] = {}

    def head(self, message: Message, waybill: DeliveryMetadata) -> bytes:
        """Everything before the body, with the empty line."""
        origin = waybill.origin
        timestamp = message.timestamp if waybill.timestamp is None else waybill.timestamp
        text = (
            f"Dlq-Topic: {UNSAFE.sub('', origin.box)}\r\n"
            f"Dlq-Partition: {origin.partition}\r\nDlq-Offset: {_offset(origin)}\r\n"
            f"Dlq-Timestamp: {times.render(timestamp)}\r\nDlq-Attempt: {waybill.attempt}\r\n"
            f"Idempotency-Key: {UNSAFE.sub('', waybill.id)}\r\nContent-Length: {len(message.value or b'')}\r\n"
        )
        return b"".join((self._start, text.encode("utf-8", "replace"), _key(message), self._headers(message), b"\r\n"))

    def _headers(self, message: Message) -> bytes:
        if not message.headers:
            return self._usual
        lines: list[bytes] = []
        size, names = 0, set(self._fixed)
        is_event = any(name == "ce_specversion" for name, _ in message.headers)
        for name, value in message.headers:
            lower = name.lower()
            if lower in ALWAYS_FORWARDED and lower in names:
                continue  # of these a request has one
            line = self._line(name, value or b"", is_event)
            if line and size + len(line) <= MAX_FORWARDED_BYTES and len(lines) < MAX_FORWARDED_HEADERS:
                lines.append(line)
                size += len(line)
                names.add(lower)
        if "content-type" not in names:
            lines.append(CONTENT_TYPE)
        return b"".join(lines)

    def _line(self, name: str, value: bytes, is_event: bool) -> bytes:
        lower = name.lower()
        if lower.startswith("ce_") and (is_event or self._goes_along(lower)):
            return f"ce-{lower[3:]}: {quote_from_bytes(value, CLOUD_EVENT_SAFE)}\r\n".encode() if _token(lower) else b""
        if not self._goes_along(lower) or not VALUE.fullmatch(value):
            return b""
        return name.encode() + b": " + value.strip() + b"\r\n"

    def _goes_along(self, lower: str) -> bool:
        if lower not in self._chosen:
            if len(self._chosen) > 1000:  # names are the sender's choice: never an unbounded memory
                self._chosen.clear()
            self._chosen[lower] = self._judge(lower)
        return self._chosen[lower]

    def _judge(self, lower: str) -> bool:
        if lower in NEVER_FORWARDED or lower in self._fixed or lower.startswith(("dlq-", "proxy-")) or not _token(lower):
            return False
        return lower in ALWAYS_FORWARDED or self._forward.fullmatch(lower) is not None


def _token(name: str) -> bool:
    return TOKEN.fullmatch(name) is not None


def _offset(place: Place) -> str:
    return place.id if place.offset > SEQUENCE_MASK else str(place.offset)


def _key(message: Message) -> bytes:
    null = b"Dlq-Null: true\r\n" if message.value is None else b""
    key = message.key
    if key is None:
        return null
    if len(key) > MAX_KEY_BYTES:
        return null + b"Dlq-Key-Encoding: omitted\r\n"
    if PLAIN.fullmatch(key) or not key:
        return null + b"Dlq-Key: " + key + b"\r\n"
    return null + b"Dlq-Key: " + b64encode(key) + b"\r\nDlq-Key-Encoding: base64\r\n"
