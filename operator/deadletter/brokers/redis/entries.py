"""Convert messages to the fields of stream entries and back, without loss.

Packed entries are our own format: first `dlq-headers` (MessagePack, a list of name and value pairs), then `key` and
`value` if present.

Plain entries come from any other system. The first of the fields `body`, `value`, `data`, `payload` is the value, `key`
is the key, every other field is a header. Without any of the four, the value is a JSON object of all fields (fields
that are not text, or occur twice, become headers without a value). The header `redis-body-field` records this, so that
the message can be written with its original fields again; our headers are then additional fields. A message of more
than `MAX_FIELDS` fields is always written packed: the time of a script grows with the number of fields, and Redis
serves no other client meanwhile.
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
    """Return names and values of the entry in turn."""
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
    except UnicodeEncodeError:  # a name that was not UTF-8 when it was read
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
    """Return the original fields of a plain entry; None if a transform has changed the message too much for that."""
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
    """Return the message that an entry holds."""
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
    our_headers = [pair for pair in pairs if pair[0].startswith(OUR_PREFIXES)]
    fields = [pair for pair in pairs if not pair[0].startswith(OUR_PREFIXES)]
    try:
        texts = {name.decode(): value.decode() for name, value in fields}
    except UnicodeDecodeError:
        texts = {}
    if len(texts) != len(fields) or not texts:
        return Message(None, None, (*_to_headers(pairs), (BODY_FIELD_HEADER, b"")), timestamp)
    return Message(None, msgspec.json.encode(texts), (*_to_headers(our_headers), (BODY_FIELD_HEADER, b"")), timestamp)


def pack_letter(message: Message) -> bytes:
    """Pack a parked letter into one value."""
    return _pack((message.key, message.value, _pack_headers(message.headers)))


def unpack_letter(packed: bytes, timestamp: int) -> Message:
    """Unpack a parked letter."""
    key, value, headers = _unpack_letter(packed)
    return Message(key, value, _unpack_headers(headers), timestamp)
