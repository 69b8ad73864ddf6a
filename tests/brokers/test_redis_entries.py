"""Conversion of messages to stream entries and back, of our own format and of other applications."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadletter.brokers.redis.entries import BODY_FIELD_HEADER, from_fields, pack_letter, to_fields, unpack_letter
from deadletter.core.headers import add_headers
from deadletter.core.letters import Envelope, Message, Origin
from tests.helpers.headers import read_own_envelope

values = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=8), values), max_size=5).map(tuple)
names = st.sampled_from([b"body", b"value", b"data", b"payload", b"key", b"other", b"", b"\xff", b"dlq-id", b"x"])
entries = st.lists(st.tuples(names, st.binary(max_size=8) | st.just(b"text")), min_size=1, max_size=6)


@settings(deadline=None, derandomize=True)
@given(values, values, headers)
def test_every_message_survives_the_round_trip(key: bytes | None, value: bytes | None, pairs: tuple) -> None:
    message = Message(key, value, pairs, 7)
    assert from_fields(to_fields(message), 7) == message
    assert unpack_letter(pack_letter(message), 7) == message


@settings(deadline=None, derandomize=True)
@given(entries)
def test_every_entry_of_others_keeps_its_fields(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    message = from_fields(fields, 7)
    written = to_fields(message)
    assert from_fields(written, 7) == message or sorted(from_fields(written, 7).headers) == sorted(message.headers)
    if b"dlq-headers" not in written[::2]:
        assert sorted(zip(written[::2], written[1::2], strict=True)) == sorted(pairs)


@pytest.mark.parametrize("body", [b"body", b"value", b"data", b"payload"])
def test_a_known_field_is_the_value_and_the_others_are_headers(body: bytes) -> None:
    message = from_fields([b"tenant", b"a", body, b"{}", b"key", b"k"], 7)
    assert (message.key, message.value) == (b"k", b"{}")
    assert dict(message.headers) == {"tenant": b"a", BODY_FIELD_HEADER: body}
    assert sorted(to_fields(message)[::2]) == sorted([b"tenant", body, b"key"])


def test_without_a_known_field_the_value_is_json_of_all_fields() -> None:
    message = from_fields([b"order", b"17", b"amount", b"5"], 7)
    assert json.loads(message.value or b"") == {"order": "17", "amount": "5"}
    assert to_fields(message) == [b"order", b"17", b"amount", b"5"]


def test_our_headers_become_additional_fields() -> None:
    message = from_fields([b"order", b"17"], 7)
    letter = add_headers(message, Envelope(origin=Origin("orders", 0, 1), attempts=3))
    fields = to_fields(letter)
    assert fields[:2] == [b"order", b"17"]
    assert b"dlq-attempts" in fields
    read = from_fields(fields, 7)
    assert read.value == message.value
    envelope = read_own_envelope(read)
    assert envelope is not None
    assert envelope.attempts == 3


def test_a_changed_value_that_is_not_an_object_is_packed() -> None:
    message = from_fields([b"order", b"17"], 7)
    changed = Message(message.key, b"not json", message.headers, 7)
    assert to_fields(changed)[0] == b"dlq-headers"
    assert from_fields(to_fields(changed), 7) == changed
