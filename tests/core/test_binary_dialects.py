"""Tests of reading protobuf and Avro bytes, also malformed ones."""

import pytest

from deadletter.core.dialects.reader import read_envelope
from deadletter.core.dialects.wire_formats import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    BinaryFormatError,
    ByteReader,
    decode_utf8,
    read_protobuf,
    to_signed,
)
from deadletter.core.letters import Message, Place
from tests.core.fixtures.binary import MAGIC, dead_letter, kafka_error, long, proto, some, text, varint

PLACE = Place("d", 0, 0)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**63 - 1, -1, -(2**63)])
def test_decoding_inverts_encoding(value):
    assert to_signed(ByteReader(varint(value)).read_varint()) == value
    assert ByteReader(long(value)).read_zigzag() == value


@pytest.mark.parametrize(
    "read",
    [
        lambda: ByteReader(b"\xff" * 11).read_varint(),
        lambda: ByteReader(b"\xff").read_varint(),
        lambda: ByteReader(b"ab").take(3),
        lambda: ByteReader(long(-1)).read_bytes(),
        lambda: ByteReader(long(2)).read_is_set(),
        lambda: ByteReader(text(b"\xff")).read_text(),
        lambda: decode_utf8(b"\xff"),
        lambda: read_protobuf(proto(f9=1), {1: VARINT}),
        lambda: read_protobuf(proto(f1=1), {1: LENGTH}),
        lambda: read_protobuf(b"\x0b", {1: VARINT}),
    ],
)
def test_malformed_bytes_are_an_error(read):
    with pytest.raises(BinaryFormatError):
        read()


def test_fixed_fields_are_read_as_bytes():
    raw = varint(1 << 3 | FIXED64) + b"12345678" + varint(2 << 3 | FIXED32) + b"1234"
    assert read_protobuf(raw, {1: FIXED64, 2: FIXED32}) == {1: b"12345678", 2: b"1234"}
    assert to_signed(b"1") is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\0\0",
        b"\1" + kafka_error("x", None)[1:],
        kafka_error("x", None)[:-2],
        kafka_error("x", None, "") + b"",
        kafka_error("x", None, "orders", "app", "n", "t", b"k", b"v") + b"\0",
        dead_letter("orders", None) + b"\0",
        dead_letter("orders")[:-1],
        MAGIC + some("a") + long(5),
        proto(f1=b"x", f2=b"T"),
        proto(f2=b"T", f7=b"t"),
        proto(f1=b"x", f2=b"\xff", f7=b"t"),
        proto(f1=b"x", f2=b"T", f4=b"\xff"),
        b'{"body": "\x9f", "error": 1',
        b'{"body": 1, "error": 2}',
        b'{"specversion": "1.0", "id": "1"}',
        b"{" * 5,
    ],
)
def test_a_value_that_is_almost_an_envelope_is_not_one(value):
    assert read_envelope(Message(b"\x12\x00", value), PLACE, read_values=True).dialect == "none"


def test_strings_that_are_not_utf8_stay_as_they_are():
    value = b'{"body": 1, "error": "\x9f", "retry_count": 2}'
    envelope = read_envelope(Message(None, value), PLACE, read_values=True)
    assert (envelope.dialect, envelope.attempts, envelope.failure.message) == ("json-envelope", 2, '"\ufffd"')
