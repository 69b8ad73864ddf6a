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

PACKED = b"dlq-headers"
SHAPE = "redis-body-field"
_OURS = (b"dlq-", b"x-orig-")
_BODIES = (b"body", b"value", b"data", b"payload")
MOST_FIELDS = 30_000
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Headers).decode
_unpack_raw = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
_unpack_letter = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, bytes]).decode
_to_object = msgspec.json.Decoder(dict[str, str]).decode


def fields_of(message: Message) -> list[bytes]:
    """Names and values of the entry, one after the other."""
    for name, value in message.headers:
        if name == SHAPE and value is not None:
            plain = _plain(message, value)
            return _packed(message) if plain is None else plain
    return _packed(message)


def _packed(message: Message) -> list[bytes]:
    fields = [PACKED, _packed_headers(message.headers)]
    if message.key is not None:
        fields += (b"key", message.key)
    if message.value is not None:
        fields += (b"value", message.value)
    return fields


def _packed_headers(headers: Headers) -> bytes:
    try:
        return _pack(headers)
    except UnicodeEncodeError:  # a name that was no UTF-8 when we read it
        return _pack(_pairs(headers))


def _unpacked_headers(packed: bytes) -> Headers:
    try:
        return _unpack(packed)
    except msgspec.MsgspecError:
        return _headers(_unpack_raw(packed))


def _pairs(headers: Headers) -> list[tuple[bytes, bytes | None]]:
    return [(name.encode("utf-8", "surrogateescape"), value) for name, value in headers]


def _headers(pairs: Sequence[tuple[bytes, bytes | None]]) -> Headers:
    return tuple((name.decode("utf-8", "surrogateescape"), value) for name, value in pairs)


def _plain(message: Message, body: bytes) -> list[bytes] | None:
    """The fields it came with; None when it cannot be written so any more (a transform may have changed it)."""
    pairs = [(name, value) for name, value in _pairs(message.headers) if name != SHAPE.encode()]
    if any(value is None or name == PACKED for name, value in pairs):
        return None
    fields = _body_fields(message.value, body)
    if fields is None or (message.key is not None and not body):
        return None
    if message.key is not None:
        fields += (b"key", message.key)
    fields += (part or b"" for pair in pairs for part in pair)
    fits = 0 < len(fields) <= 2 * MOST_FIELDS
    return fields if fits and _comes_back(fields, message) else None


def _body_fields(value: bytes | None, body: bytes) -> list[bytes] | None:
    if value is None:
        return []
    if body:
        return [body, value]
    try:
        found = _to_object(value)
    except msgspec.MsgspecError:
        return None
    return [part.encode() for pair in found.items() for part in pair]


def _comes_back(fields: list[bytes], message: Message) -> bool:
    read = message_of(fields, 0)
    return (read.key, read.value) == (message.key, message.value) and sorted(read.headers, key=repr) == sorted(
        message.headers, key=repr
    )


def message_of(fields: Sequence[bytes], timestamp: int) -> Message:
    """The message in an entry's fields."""
    if fields[0] != PACKED:
        return _foreign(list(zip(fields[::2], fields[1::2], strict=True)), timestamp)
    try:
        headers = _unpacked_headers(fields[1])
    except msgspec.MsgspecError:
        return _foreign(list(zip(fields[::2], fields[1::2], strict=True)), timestamp)
    key = value = None
    for at in range(2, len(fields), 2):
        if fields[at] == b"value":
            value = fields[at + 1]
        elif fields[at] == b"key":
            key = fields[at + 1]
    return Message(key, value, headers, timestamp)


def _foreign(pairs: list[tuple[bytes, bytes]], timestamp: int) -> Message:
    names = [name for name, _ in pairs]
    body = next((name for name in _BODIES if name in names), None)
    if body is None:
        return _without_body(pairs, timestamp)
    value = pairs.pop(names.index(body))[1]
    key = next((pair for pair in pairs if pair[0] == b"key"), None)
    if key is not None:
        pairs.remove(key)
    headers = (*_headers(pairs), (SHAPE, body))
    return Message(key[1] if key else None, value, headers, timestamp)


def _without_body(pairs: list[tuple[bytes, bytes]], timestamp: int) -> Message:
    ours = [pair for pair in pairs if pair[0].startswith(_OURS)]
    fields = [pair for pair in pairs if not pair[0].startswith(_OURS)]
    try:
        texts = {name.decode(): value.decode() for name, value in fields}
    except UnicodeDecodeError:
        texts = {}
    if len(texts) != len(fields) or not texts:
        return Message(None, None, (*_headers(pairs), (SHAPE, b"")), timestamp)
    return Message(None, msgspec.json.encode(texts), (*_headers(ours), (SHAPE, b"")), timestamp)


def pack_letter(message: Message) -> bytes:
    """A waiting letter as one value."""
    return _pack((message.key, message.value, _packed_headers(message.headers)))


def unpack_letter(packed: bytes, timestamp: int) -> Message:
    """A waiting letter again."""
    key, value, headers = _unpack_letter(packed)
    return Message(key, value, _unpacked_headers(headers), timestamp)
