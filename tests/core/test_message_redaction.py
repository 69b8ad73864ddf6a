"""Tests of redaction."""

import pytest

from deadletter.core.letters import Message
from deadletter.core.message_redaction import redact


def test_redaction_hides_headers_of_any_case():
    message = Message(None, b"v", (("Authorization", b"Bearer x"), ("a", b"1"), ("authorization", None)))
    assert redact(message, ["authorization"], []).headers == (
        ("Authorization", b"[redacted]"),
        ("a", b"1"),
        ("authorization", None),
    )


@pytest.mark.parametrize(
    ("value", "pointer", "redacted"),
    [
        (b'{"card": {"number": "1"}}', "/card/number", b'{"card":{"number":"[redacted]"}}'),
        (b'{"cards": [{"n": 1}, {"n": 2}]}', "/cards/1/n", b'{"cards":[{"n":1},{"n":"[redacted]"}]}'),
        (b'["a", "b"]', "/1", b'["a","[redacted]"]'),
        (b'{"a/b": 1, "c~d": 2}', "/a~1b", b'{"a/b":"[redacted]","c~d":2}'),
        (b'{"a": 1}', "/nope", b'{"a": 1}'),
        (b'{"a": 1}', "/a/b/c", b'{"a": 1}'),
        (b"[1, 2]", "/9", b"[1, 2]"),
        (b"[1, 2]", "/9/x", b"[1, 2]"),
        (b"[1, 2]", "/x", b"[1, 2]"),
        (b'{"a": 1}', "", b'{"a": 1}'),
        (b"card=4711", "/card", b"[redacted]"),
        (b"[" * 100_000, "/card", b"[redacted]"),
        (None, "/card", None),
    ],
)
def test_redaction_of_values(value, pointer, redacted):
    assert redact(Message(b"k", value), [], [pointer]).value == redacted


def test_without_pointers_a_value_is_not_touched():
    assert redact(Message(None, b"\xff"), ["x"], []).value == b"\xff"
