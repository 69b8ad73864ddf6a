"""CEL behind one class, and the selection of a Replay."""

import pytest

from deadletter.core.cel import Predicate, PredicateError
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Category, Failure, Origin, Place
from deadletter.core.selection import Selection
from tests.core.making import NOW, letter

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
def test_every_variable_of_the_api(source):
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
def test_a_payload_that_is_no_json_is_an_evaluation_error(value):
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


def test_a_cost_guard_ends_endless_expressions():
    endless = "payload.exists(x, payload.exists(y, payload.exists(z, x + y + z == -1)))"
    assert Predicate(endless).matches(letter(value=b"[" + b"1," * 999 + b"1]"), NOW) is None


def test_times_out_of_range_are_bounded():
    odd = letter()
    odd.message.timestamp, odd.envelope.failed_at = -(10**18), None
    assert Predicate("timestamp == failedAt").matches(odd, NOW) is True
    assert Predicate('age > duration("1s")').matches(odd, 10**30) is None


@pytest.mark.parametrize(
    ("source", "position", "sentence"),
    [
        ("attempts <", "1:11", "Syntax error"),
        ("true &&\n  nope == 1", "2:3", "undeclared reference to 'nope'"),
        ('attempts == "3"', "1:10", "no matching overload"),
        ("attempts", "1:1", "must be bool, not INT"),
        ("payload.a", "1:1", "must be bool, not DYN"),
        ("", "1:1", "Syntax error"),
        ("true" + " " * 5_000, "1:1", "at most 4096 characters"),
    ],
)
def test_a_wrong_expression_says_where(source, position, sentence):
    with pytest.raises(PredicateError, match=sentence) as refused:
        Predicate(source)
    assert refused.value.position == position


def test_an_objection_without_a_position_is_still_a_sentence():
    from deadletter.core.cel import _error_from_compiler

    assert str(_error_from_compiler("odd")) == "1:1: the expression cannot be compiled"


def test_the_same_text_is_compiled_once():
    assert Predicate.cached("attempts < 5") is Predicate.cached("attempts < 5")


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(ids=["2-7", "0-1"]), True),
        (Selection(ids=["0-1"]), False),
        (Selection(fingerprint=HASH), True),
        (Selection(fingerprint="00000000"), False),
        (Selection(since=NOW), True),
        (Selection(since=NOW + 1), False),
        (Selection(until=NOW + 1), True),
        (Selection(until=NOW), False),
        (Selection(where="attempts == 3"), True),
        (Selection(where="attempts == 3", ids=["0-1"]), False),
        (Selection(where="payload.nothing == 1"), None),
        (Selection(where="payload.nothing == 1", since=NOW + 1), False),
    ],
)
def test_a_selection_takes_what_fits_every_part(selection, taken):
    assert selection.matches(LETTER, NOW) is taken


@pytest.mark.parametrize(
    ("selection", "suffices"),
    [
        (Selection(), True),
        (Selection(fingerprint="0123abcd", limit=5), True),
        (Selection(where="true"), False),
        (Selection(since=1), False),
        (Selection(until=1), False),
    ],
)
def test_a_glance_suffices_unless_times_or_an_expression_ask_for_more(selection, suffices):
    assert selection.needs_only_summary is suffices
    assert selection.matches_all is (selection == Selection())
