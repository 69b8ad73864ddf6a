"""Reading protobuf and Avro bytes without their schemas' code: just enough for the envelopes that lie in values."""

from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}


class BinaryFormatError(ValueError):
    """These bytes are not in the expected form."""


@dataclass(slots=True)
class ByteReader:
    """Bytes and how far they were read."""

    raw: bytes
    at: int = 0

    @property
    def is_done(self) -> bool:
        """Was everything read?"""
        return self.at >= len(self.raw)

    def take(self, count: int) -> bytes:
        """The next bytes, all of them or a WireError."""
        if count < 0 or self.at + count > len(self.raw):
            raise BinaryFormatError("too short")
        self.at += count
        return self.raw[self.at - count : self.at]

    def read_varint(self) -> int:
        """A base-128 number of at most ten bytes."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BinaryFormatError("a number is too long")

    def read_zigzag(self) -> int:
        """An Avro int or long."""
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_bytes(self) -> bytes:
        """Avro bytes."""
        return self.take(self.read_zigzag())

    def read_text(self) -> str:
        """An Avro string."""
        return decode_utf8(self.read_bytes())

    def read_is_set(self) -> bool:
        """The branch of an Avro union of null and something."""
        branch = self.read_zigzag()
        if branch not in {0, 1}:
            raise BinaryFormatError("no such branch")
        return branch == 1


def decode_utf8(raw: bytes) -> str:
    """The text, or a WireError."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BinaryFormatError("not a text") from None


def read_protobuf(raw: bytes, kinds: dict[int, int]) -> dict[int, int | bytes]:
    """The last value of each field; a WireError when a field is not of the expected kind or not expected at all."""
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
            raise BinaryFormatError("groups are not read")


def to_signed(value: int | bytes | None) -> int | None:
    """A protobuf int32 or int64 out of its varint; None for anything else."""
    if not isinstance(value, int):
        return None
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
