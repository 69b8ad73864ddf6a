"""Tests of numbers and times in the encodings of other systems."""

import pytest

from deadletter.core.header_values import epoch_to_ms, parse_number, parse_position, parse_time
from tests.core.fixtures.base import big, i32, i64

WHEN = 1_700_000_000_123


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (None, None),
        (b"", None),
        (b"0", 0),
        (b"1234", 1_234),
        (b"12345678", 12_345_678),
        (b"-1", -1),
        (b"9" * 20, None),
        (b"9" * 21, None),
        (b"\x03", 3),
        (b"\xff", 255),
        (i32(7), 7),
        (i32(-7), -7),
        (i64(2**40), 2**40),
        (big(WHEN), WHEN),
        (big(-300), -300),
        (b"twelve!", int.from_bytes(b"twelve!", "big")),
        (b"not a number", None),
    ],
)
def test_parses_numbers(raw, value):
    assert parse_number(raw) == value


def test_a_position_is_not_negative():
    assert parse_position(b"-1") is None
    assert parse_position(b"5") == 5
    assert parse_position(None) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"1700000000123",
        b"1700000000123456",
        b"1700000000123456789",
        b"1700000000.123",
        i64(WHEN),
        big(WHEN),
        b"2023-11-14T22:13:20.123Z",
        b'"2023-11-14T22:13:20.123Z"',
        b"2023-11-14 22:13:20:123456 Z",
    ],
)
def test_parses_times(raw):
    assert parse_time(raw) == WHEN


@pytest.mark.parametrize(
    "raw", [None, b"", b"0", b"-5", b"soon, I think", b"\xff" * 30, b"99999999999999.9", b"2023-99-99T00:00:00Z"]
)
def test_a_malformed_time_is_none(raw):
    assert parse_time(raw) is None


def test_the_magnitude_of_an_epoch_gives_its_unit():
    assert epoch_to_ms(1_700_000_000) == 1_700_000_000_000
    assert epoch_to_ms(None) is None
