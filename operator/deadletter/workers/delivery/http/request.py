"""Render a message as the head of an HTTP request; the body is the message's value.

- `Dlq-Topic`, `Dlq-Partition`, `Dlq-Offset`, `Dlq-Timestamp`: the origin of the message; `Dlq-Attempt`: the attempt
- `Dlq-Key`: the key if it is plain text, else base64 with `Dlq-Key-Encoding: base64`; omitted if very long
- `Dlq-Null: true`: the value is null, not empty
- `Idempotency-Key`: the same for a message through all attempts, parkings, restarts and replays
- `ce_*` of a CloudEvent in binary mode become `ce-*`; `content-type`, `traceparent`, `tracestate` are always forwarded
- other message headers are forwarded if a glob of `forwardHeaders` matches their name

Headers that would break HTTP (framing headers, names that are not tokens, values with control characters) are dropped.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from fnmatch import translate
from urllib.parse import quote_from_bytes

from deadletter.core import times
from deadletter.core.letters import SEQUENCE_MASK, Message, Place
from deadletter.workers.delivery.base import DeliveryMetadata

MAX_KEY_BYTES = 4 << 10
MAX_FORWARDED_BYTES = 8 << 10  # servers reject heads of more than 8 to 16 KiB, or of more than about 100 headers
MAX_FORWARDED_HEADERS = 64
MAX_CACHED_NAMES = 1000
ALWAYS_FORWARDED = frozenset({"content-type", "traceparent", "tracestate"})
FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "upgrade"}
)
NEVER_FORWARDED = FRAMING_HEADERS | {"idempotency-key", "transfer-encoding"}
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
PLAIN_KEY = re.compile(rb"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
HEADER_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
DEFAULT_CONTENT_TYPE = b"Content-Type: application/octet-stream\r\n"
CLOUD_EVENT_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class RequestRenderer:
    """Renders the heads of requests to one URL; the constant part is rendered once."""

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
        self._fixed_names = frozenset(name.lower() for name, _ in headers)
        self._content_type = b"" if "content-type" in self._fixed_names else DEFAULT_CONTENT_TYPE
        self._forward = re.compile("|".join(translate(glob.lower()) for glob in forward) or r"\Z.")
        self._is_forwarded_by_name: dict[str, bool] = {}

    def render_head(self, message: Message, metadata: DeliveryMetadata) -> bytes:
        """Return the request line and the headers, with the empty line that ends them."""
        origin = metadata.origin
        timestamp = message.timestamp if metadata.timestamp is None else metadata.timestamp
        text = (
            f"Dlq-Topic: {CONTROL_CHARACTER.sub('', origin.box)}\r\n"
            f"Dlq-Partition: {origin.partition}\r\nDlq-Offset: {_offset(origin)}\r\n"
            f"Dlq-Timestamp: {times.render(timestamp)}\r\nDlq-Attempt: {metadata.attempt}\r\n"
            f"Idempotency-Key: {CONTROL_CHARACTER.sub('', metadata.id)}\r\n"
            f"Content-Length: {len(message.value or b'')}\r\n"
        )
        encoded = text.encode("utf-8", "replace")
        return b"".join((self._start, encoded, _key_headers(message), self._forwarded_headers(message), b"\r\n"))

    def _forwarded_headers(self, message: Message) -> bytes:
        if not message.headers:
            return self._content_type
        rendered: list[bytes] = []
        size, names = 0, set(self._fixed_names)
        is_event = any(name == "ce_specversion" for name, _ in message.headers)
        for name, value in message.headers:
            lower = name.lower()
            if lower in ALWAYS_FORWARDED and lower in names:
                continue  # a request has at most one of each of these
            header = self._render_header(name, value or b"", is_event)
            if header and size + len(header) <= MAX_FORWARDED_BYTES and len(rendered) < MAX_FORWARDED_HEADERS:
                rendered.append(header)
                size += len(header)
                names.add(lower)
        if "content-type" not in names:
            rendered.append(DEFAULT_CONTENT_TYPE)
        return b"".join(rendered)

    def _render_header(self, name: str, value: bytes, is_event: bool) -> bytes:
        lower = name.lower()
        if lower.startswith("ce_") and (is_event or self._is_forwarded(lower)):
            if not _is_token(lower):
                return b""
            return f"ce-{lower[3:]}: {quote_from_bytes(value, CLOUD_EVENT_SAFE)}\r\n".encode()
        if not self._is_forwarded(lower) or not HEADER_VALUE.fullmatch(value):
            return b""
        return name.encode() + b": " + value.strip() + b"\r\n"

    def _is_forwarded(self, lower: str) -> bool:
        if lower not in self._is_forwarded_by_name:
            if len(self._is_forwarded_by_name) > MAX_CACHED_NAMES:  # the sender chooses the names: bound the memory
                self._is_forwarded_by_name.clear()
            self._is_forwarded_by_name[lower] = self._matches(lower)
        return self._is_forwarded_by_name[lower]

    def _matches(self, lower: str) -> bool:
        if lower in NEVER_FORWARDED or lower in self._fixed_names or lower.startswith(("dlq-", "proxy-")):
            return False
        return _is_token(lower) and (lower in ALWAYS_FORWARDED or self._forward.fullmatch(lower) is not None)


def _is_token(name: str) -> bool:
    return TOKEN.fullmatch(name) is not None


def _offset(place: Place) -> str:
    return place.id if place.offset > SEQUENCE_MASK else str(place.offset)


def _key_headers(message: Message) -> bytes:
    null = b"Dlq-Null: true\r\n" if message.value is None else b""
    key = message.key
    if key is None:
        return null
    if len(key) > MAX_KEY_BYTES:
        return null + b"Dlq-Key-Encoding: omitted\r\n"
    if PLAIN_KEY.fullmatch(key) or not key:
        return null + b"Dlq-Key: " + key + b"\r\n"
    return null + b"Dlq-Key: " + b64encode(key) + b"\r\nDlq-Key-Encoding: base64\r\n"
