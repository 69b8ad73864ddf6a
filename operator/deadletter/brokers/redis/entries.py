"""A message as the fields of a stream entry, and back, without losing a byte.

Packed, our own: first `dlq-headers` (MessagePack, a list of name and value pairs), then `key` and `value` when there
are any.

Plain, of any other system: the first of `body`, `value`, `data`, `payload` is the value, `key` the key, every other
field a header; with none of the four the value is a JSON object of all fields (fields that are not text, or named
twice, become headers without a value). The header `redis-body-field` remembers the shape, so that such a message is
written with the very fields it came with, and our headers are fields beside them. A message that would take more than
`MOST_FIELDS` fields is written packed, at its origin too: a script needs the longer the more fields an entry has, and
Redis serves no one else meanwhile.
"""

from collections.abc import Sequence

import msgspec

from deadletter.core.letters import Headers, Message

HEADERS_FIELD = b"dlq-headers"
BODY_FIELD_HEADER = "redis-body-field"
OUR_PREFIXES = (b"dlq-", b"x-orig-")
BODY_FIELDS = (b"body", b"value", b"data", b"payload")
MAX_FIELDS = 30_000
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Headers).decode
_unpack_raw = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
_unpack_letter = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, bytes]).decode
_to_object = msgspec.json.Decoder(dict[str, str]).decode


def to_fields(message: Message) -> list[bytes]:
    """Names and values of the entry, one after the other."""
    for name, value in message.headers:
        if name == BODY_FIELD_HEADER and value is not None:
            plain = _to_plain_fields(message, value)
            return _to_packed_fields(message) if plain is None else plain
    return _to_packed_fields(message)


def _to_packed_fields(message: Message) -> list[bytes]:
    fields = [HEADERS_FIELD, _pack_headers(message.headers)]
    if message.key is not None:
        fields += (b"key", message.key)
    if message.value is not None:
        fields += (b"value", message.value)
    return fields


def _pack_headers(headers: Headers) -> bytes:
    try:
        return _pack(headers)
    except UnicodeEncodeError:  # a name that was no UTF-8 when we read it
        return _pack(_to_pairs(headers))


def _unpack_headers(packed: bytes) -> Headers:
    try:
        return _unpack(packed)
    except msgspec.MsgspecError:
        return _to_headers(_unpack_raw(packed))


def _to_pairs(headers: Headers) -> list[tuple[bytes, bytes | None]]:
    return [(name.encode("utf-8", "surrogateescape"), value) for name, value in headers]


def _to_headers(pairs: Sequence[tuple[bytes, bytes | None]]) -> Headers:
    return tuple((name.decode("utf-8", "surrogateescape"), value) for name, value in pairs)


def _to_plain_fields(message: Message, body: bytes) -> list[bytes] | None:
    """The fields it came with; None when it cannot be written so any more (a transform may have changed it)."""
    pairs = [(name, value) for name, value in _to_pairs(message.headers) if name != BODY_FIELD_HEADER.encode()]
    if any(value is None or name == HEADERS_FIELD for name, value in pairs):
        return None
    fields = _to_body_fields(message.value, body)
    if fields is None or (message.key is not None and not body):
        return None
    if message.key is not None:
        fields += (b"key", message.key)
    fields += (part or b"" for pair in pairs for part in pair)
    fits = 0 < len(fields) <= 2 * MAX_FIELDS
    return fields if fits and _round_trips(fields, message) else None


def _to_body_fields(value: bytes | None, body: bytes) -> list[bytes] | None:
    if value is None:
        return []
    if body:
        return [body, value]
    try:
        found = _to_object(value)
    except msgspec.MsgspecError:
        return None
    return [part.encode() for pair in found.items() for part in pair]


def _round_trips(fields: list[bytes], message: Message) -> bool:
    read = from_fields(fields, 0)
    return (read.key, read.value) == (message.key, message.value) and sorted(read.headers, key=repr) == sorted(
        message.headers, key=repr
    )


def from_fields(fields: Sequence[bytes], timestamp: int) -> Message:
    """The message in an entry's fields."""
    if fields[0] != HEADERS_FIELD:
        return _from_plain_fields(list(zip(fields[::2], fields[1::2], strict=True)), timestamp)
    try:
        headers = _unpack_headers(fields[1])
    except msgspec.MsgspecError:
        return _from_plain_fields(list(zip(fields[::2], fields[1::2], strict=True)), timestamp)
    key = value = None
    for at in range(2, len(fields), 2):
        if fields[at] == b"value":
            value = fields[at + 1]
        elif fields[at] == b"key":
            key = fields[at + 1]
    return Message(key, value, headers, timestamp)


def _from_plain_fields(pairs: list[tuple[bytes, bytes]], timestamp: int) -> Message:
    names = [name for name, _ in pairs]
    body = next((name for name in BODY_FIELDS if name in names), None)
    if body is None:
        return _from_fields_without_body(pairs, timestamp)
    value = pairs.pop(names.index(body))[1]
    key = next((pair for pair in pairs if pair[0] == b"key"), None)
    if key is not None:
        pairs.remove(key)
    headers = (*_to_headers(pairs), (BODY_FIELD_HEADER, body))
    return Message(key[1] if key else None, value, headers, timestamp)


def _from_fields_without_body(pairs: list[tuple[bytes, bytes]], timestamp: int) -> Message:
    ours = [pair for pair in pairs if pair[0].startswith(OUR_PREFIXES)]
    fields = [pair for pair in pairs if not pair[0].startswith(OUR_PREFIXES)]
    try:
        texts = {name.decode(): value.decode() for name, value in fields}
    except UnicodeDecodeError:
        texts = {}
    if len(texts) != len(fields) or not texts:
        return Message(None, None, (*_to_headers(pairs), (BODY_FIELD_HEADER, b"")), timestamp)
    return Message(None, msgspec.json.encode(texts), (*_to_headers(ours), (BODY_FIELD_HEADER, b"")), timestamp)


def pack_letter(message: Message) -> bytes:
    """A waiting letter as one value."""
    return _pack((message.key, message.value, _pack_headers(message.headers)))


def unpack_letter(packed: bytes, timestamp: int) -> Message:
    """A waiting letter again."""
    key, value, headers = _unpack_letter(packed)
    return Message(key, value, _unpack_headers(headers), timestamp)
