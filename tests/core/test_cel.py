"""Tests of CEL predicates."""

import pytest

from deadletter.core.cel import Predicate, PredicateError, _error_from_compiler
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Category, Failure, Origin, Place
from tests.core.letters import NOW, letter

FAILED = Failure("x.Timeout", "late", Category.Network, stack="at a.b(c)")
LETTER = letter(
    3,
    FAILED,
    headers=(("tenant", b"acme"), ("raw", b"\xff"), ("none", None), ("tenant", b"last")),
    value=b'{"total": 12.5, "items": [1, 2], "paid": true}',
    origin=Origin("orders", 1, 5),
    replays=2,
    dialect="spring-dlt",
)
HASH = fingerprint(FAILED)


@pytest.mark.parametrize(
    "source",
    [
        'id == "2-7"',
        'topic == "orders.dlq" && partition == 2 && offset == 7',
        'timestamp < failedAt && failedAt == timestamp("2023-11-14T22:13:20Z")',
        'key == "key"',
        'headers["tenant"] == "last" && headers["none"] == "" && "raw" in headers',
        'error.type.endsWith("Timeout") && error.message == "late" && error.category == "Network"',
        'error.status == null && error.stack.contains("a.b")',
        "attempts == 3 && replays == 2 && attempts < 9",
        'age == duration("5s") && age > duration("1s")',
        'origin.topic == "orders" && origin.partition == 1 && origin.offset == 5',
        'dialect == "spring-dlt"',
        f'fingerprint == "{HASH}"',
        "payload.total > 12 && payload.items.exists(item, item == 2)",
        "size > 40",
        'error.message.matches("^l.te$")',
    ],
)
def test_every_variable_is_available(source):
    assert Predicate(source).matches(LETTER, NOW + 5_000) is True
    assert Predicate(f"!({source})").matches(LETTER, NOW + 5_000) is False


@pytest.mark.parametrize(
    "source",
    [
        'headers["missing"] == "x"',
        "payload.nothing == 1",
        "1 / (attempts - 3) == 1",
        "error.nothing == 1",
        "int(key) == 1",
        'payload.total.matches("x")',
    ],
)
def test_an_evaluation_error_never_selects(source):
    assert Predicate(source).matches(LETTER, NOW) is None


@pytest.mark.parametrize("value", [b"{", b"\xff\xfe", b"", b"[" * 100_000])
def test_a_payload_that_is_not_json_is_an_evaluation_error(value):
    assert Predicate("payload.a == 1").matches(letter(value=value), NOW) is None
    assert Predicate("attempts == 1").matches(letter(value=value), NOW) is True


def test_numbers_beyond_int64_are_an_evaluation_error():
    assert Predicate("payload.n == 1").matches(letter(value=b'{"n": 123456789012345678901234567890}'), NOW) is None


def test_a_tombstone_has_a_null_payload():
    assert Predicate("payload == null").matches(letter(value=None, key=None), NOW) is True
    assert Predicate('key == ""').matches(letter(key=None), NOW) is True


def test_a_redis_offset_is_its_millisecond():
    there = letter(place=Place.from_entry_id("s", "1700000000000-3"), origin=Origin("s", 0, 1_700_000_000_000 << 64))
    assert Predicate('offset == 1700000000000 && id == "1700000000000-3"').matches(there, NOW) is True
    assert Predicate("origin.offset == 1700000000000").matches(there, NOW) is True


def test_the_cost_limit_stops_endless_expressions():
    endless = "payload.exists(x, payload.exists(y, payload.exists(z, x + y + z == -1)))"
    assert Predicate(endless).matches(letter(value=b"[" + b"1," * 999 + b"1]"), NOW) is None


def test_times_out_of_range_are_clamped():
    odd = letter()
    odd.message.timestamp, odd.envelope.failed_at = -(10**18), None
    assert Predicate("timestamp == failedAt").matches(odd, NOW) is True
    assert Predicate('age > duration("1s")').matches(odd, 10**30) is None


@pytest.mark.parametrize(
    ("source", "position", "problem"),
    [
        ("attempts <", "1:11", "Syntax error"),
        ("true &&\n  nope == 1", "2:3", "undeclared reference to 'nope'"),
        ('attempts == "3"', "1:10", "no matching overload"),
        ("attempts", "1:1", "must be bool, not INT"),
        ("payload.a", "1:1", "must be bool, not DYN"),
        ("", "1:1", "Syntax error"),
        ("true" + " " * 5_000, "1:1", "longer than 4096 characters"),
    ],
)
def test_an_invalid_expression_is_rejected_with_its_position(source, position, problem):
    with pytest.raises(PredicateError, match=problem) as refused:
        Predicate(source)
    assert refused.value.position == position


def test_a_compiler_error_without_position_still_has_a_message():
    assert str(_error_from_compiler("odd")) == "1:1: the expression cannot be compiled"


def test_the_same_text_is_compiled_once():
    assert Predicate.cached("attempts < 5") is Predicate.cached("attempts < 5")
