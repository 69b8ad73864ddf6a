"""Read protobuf and Avro bytes without generated code, as far as the envelopes of the dialects need."""

from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}


class BinaryFormatError(ValueError):
    """The bytes are not in the expected format."""


@dataclass(slots=True)
class ByteReader:
    """Bytes and the position up to which they were read."""

    raw: bytes
    at: int = 0

    @property
    def is_done(self) -> bool:
        """True if all bytes were read."""
        return self.at >= len(self.raw)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; BinaryFormatError if there are fewer."""
        if count < 0 or self.at + count > len(self.raw):
            raise BinaryFormatError("too short")
        self.at += count
        return self.raw[self.at - count : self.at]

    def read_varint(self) -> int:
        """Read a base-128 number of at most ten bytes."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BinaryFormatError("a number is too long")

    def read_zigzag(self) -> int:
        """Read an Avro int or long."""
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_bytes(self) -> bytes:
        """Read Avro bytes."""
        return self.take(self.read_zigzag())

    def read_text(self) -> str:
        """Read an Avro string."""
        return decode_utf8(self.read_bytes())

    def read_is_set(self) -> bool:
        """Read the branch of an Avro union of null and another type; False for null."""
        branch = self.read_zigzag()
        if branch not in {0, 1}:
            raise BinaryFormatError("unknown branch of a union")
        return branch == 1


def decode_utf8(raw: bytes) -> str:
    """Return the text; BinaryFormatError if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BinaryFormatError("not UTF-8") from None


def read_protobuf(raw: bytes, kinds: dict[int, int]) -> dict[int, int | bytes]:
    """Return the last value of each field; BinaryFormatError if a field has another wire type or is not expected."""
    found: dict[int, int | bytes] = {}
    for field, kind, value in _fields(ByteReader(raw)):
        if kinds.get(field) != kind:
            raise BinaryFormatError("an unexpected field")
        found[field] = value
    return found


def _fields(reader: ByteReader) -> Iterator[tuple[int, int, int | bytes]]:
    while not reader.is_done:
        tag = reader.read_varint()
        field, kind = tag >> 3, tag & 7
        if kind == VARINT:
            yield field, kind, reader.read_varint()
        elif kind == LENGTH:
            yield field, kind, reader.take(reader.read_varint())
        elif kind in _FIXED:
            yield field, kind, reader.take(_FIXED[kind])
        else:
            raise BinaryFormatError("groups are not supported")


def to_signed(value: int | bytes | None) -> int | None:
    """Return the protobuf int32 or int64 of a varint; None for any other value."""
    if not isinstance(value, int):
        return None
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
