"""What a Replay changes, and what a person may see."""

import pytest

from deadletter.core.letters import Message
from deadletter.core.redaction import redact
from deadletter.core.transform import Transform, TransformError

MESSAGE = Message(b"k", b'{"currency": "USD", "n": 123456789012345678901234567890}', (("a", b"1"), ("b", None)), 5)


def test_nothing_asked_nothing_changed():
    assert Transform().apply(MESSAGE) == MESSAGE


def test_headers_are_set_once_and_removed():
    message = Message(None, b"\xff", (("a", b"1"), ("a", b"2"), ("b", None), ("c", b"3")))
    changed = Transform({"a": "new", "d": "ü"}, ["b"]).apply(message)
    assert changed.headers == (("c", b"3"), ("a", b"new"), ("d", "ü".encode()))
    assert changed.value == b"\xff"


def test_a_patch_changes_the_value_and_keeps_large_integers():
    patch = [{"op": "replace", "path": "/currency", "value": "€"}, {"op": "add", "path": "/x", "value": 1}]
    changed = Transform(json_patch=patch).apply(MESSAGE)
    assert changed.value == '{"currency":"€","n":123456789012345678901234567890,"x":1}'.encode()
    assert (changed.key, changed.timestamp) == (b"k", 5)


def test_a_patch_leaves_the_next_message_alone():
    transform = Transform(json_patch=[{"op": "add", "path": "/list/-", "value": 1}])
    assert [transform.apply(Message(None, b'{"list": []}')).value for _ in range(2)] == [b'{"list":[1]}'] * 2


@pytest.mark.parametrize(
    ("patch", "value", "sentence"),
    [
        ([{"op": "replace", "path": "/nope", "value": 1}], b"{}", "does not apply"),
        ([{"op": "test", "path": "/a", "value": 1}], b'{"a": 2}', "does not apply"),
        ([{"op": "add", "path": "/0/x", "value": 1}], b'["secret"]', "does not apply"),
        ([{"op": "add", "path": "/a", "value": 1}], b"secret", "not JSON"),
        ([{"op": "add", "path": "/a", "value": 1}], b"\xff", "not JSON"),
        ([{"op": "add", "path": "/a", "value": 1}], None, "no value"),
        ([{"op": "add", "path": "/a", "value": 1}], b'{"b": 1e999}', "does not apply"),
        ([{"op": "add", "path": "/0", "value": 1}], b"[" * 800 + b"]" * 800, "does not apply"),
        ([{"op": "add", "path": "/0", "value": 1}], b"[" * 8000 + b"]" * 8000, "not JSON"),
        ([{"op": "fly", "path": "/a"}], b"{}", "not valid"),
        ([{"op": "add", "path": "a", "value": 1}], b"{}", "not valid"),
        ([{"op": "add"}], b"{}", "not valid"),
    ],
)
def test_what_does_not_fit_is_an_error_without_the_payload(patch, value, sentence):
    with pytest.raises(TransformError, match=sentence) as refused:
        Transform(json_patch=patch).apply(Message(None, value))
    assert "secret" not in str(refused.value)


def test_redaction_hides_headers_of_any_case():
    message = Message(None, b"v", (("Authorization", b"Bearer x"), ("a", b"1"), ("authorization", None)))
    assert redact(message, ["authorization"], []).headers == (
        ("Authorization", b"[redacted]"),
        ("a", b"1"),
        ("authorization", None),
    )


@pytest.mark.parametrize(
    ("value", "pointer", "shown"),
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
def test_redaction_of_values(value, pointer, shown):
    assert redact(Message(b"k", value), [], [pointer]).value == shown


def test_without_pointers_a_value_is_not_touched():
    assert redact(Message(None, b"\xff"), ["x"], []).value == b"\xff"
