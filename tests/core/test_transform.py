"""Tests of the transform of a Replay."""

import pytest

from deadletter.core.letters import Message
from deadletter.core.transform import Transform, TransformError

MESSAGE = Message(b"k", b'{"currency": "USD", "n": 123456789012345678901234567890}', (("a", b"1"), ("b", None)), 5)


def test_an_empty_transform_changes_nothing():
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
    ("patch", "value", "problem"),
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
def test_an_error_contains_no_part_of_the_message(patch, value, problem):
    with pytest.raises(TransformError, match=problem) as refused:
        Transform(json_patch=patch).apply(Message(None, value))
    assert "secret" not in str(refused.value)
