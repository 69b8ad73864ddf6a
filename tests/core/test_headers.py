"""Tests of writing and reading our own headers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core import times
from deadletter.core.dialects.reader import read_envelope, restore_message
from deadletter.core.headers import OUR_HEADERS, add_headers, add_replay_headers, rename_spoofed
from deadletter.core.letters import Category, Confidence, Envelope, Failure, Message, Origin, Place
from tests.core.fixtures.base import texts
from tests.helpers.headers import read_own_envelope

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
WHEN = st.integers(0, times.MAX_MS)
NAMES = st.one_of(st.sampled_from(OUR_HEADERS), TEXT)
MESSAGES = st.builds(
    Message,
    st.none() | st.binary(),
    st.none() | st.binary(),
    st.lists(st.tuples(NAMES, st.none() | st.binary()), max_size=8).map(tuple),
    WHEN,
)
ORIGINS = st.builds(
    Origin, TEXT, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1) | st.integers(2**64, 2**100), st.none() | WHEN
)
FAILURES = st.builds(Failure, TEXT, TEXT, st.sampled_from(Category), st.none() | st.integers(100, 599), st.just(""))


@st.composite
def envelopes(draw):
    origin = draw(ORIGINS)
    return Envelope(
        dialect="ours",
        confidence=Confidence.Certain,
        origin=origin,
        hop=origin,
        group=draw(st.none() | TEXT),
        attempts=draw(st.integers(0, 10**6)),
        first_failed_at=draw(st.none() | WHEN),
        failed_at=draw(st.none() | WHEN),
        failure=draw(FAILURES),
        reason=draw(TEXT),
        due_at=draw(st.none() | WHEN),
        replays=draw(st.integers(0, 1_000)),
        replay=draw(st.none() | TEXT),
        id=draw(st.none() | TEXT),
    )


@given(MESSAGES, envelopes())
def test_reading_inverts_writing(message, envelope):
    written = add_headers(message, envelope)
    assert read_own_envelope(written) == envelope
    assert read_envelope(written, Place("d", 0, 0)) == envelope


@given(MESSAGES, envelopes())
def test_foreign_headers_keep_their_bytes_and_order(message, envelope):
    written = add_headers(message, envelope)
    foreign = tuple(header for header in message.headers if header[0] not in OUR_HEADERS)
    assert (written.key, written.value, written.timestamp) == (message.key, message.value, message.timestamp)
    assert written.headers[: len(foreign)] == foreign
    assert len({name for name, _ in written.headers[len(foreign) :]}) == len(written.headers) - len(foreign)


@given(MESSAGES, envelopes())
def test_writing_twice_is_the_same_as_once(message, envelope):
    assert add_headers(add_headers(message, envelope), envelope) == add_headers(message, envelope)


def test_a_hundred_rounds_do_not_grow_a_message():
    message = Message(b"k", b"v", (("user", b"x"),))
    envelope = Envelope(origin=Origin("t", 1, 2), failure=Failure("T", "m" * 5_000))
    sizes = set()
    for attempts in range(100, 200):
        message = add_headers(message, replace(envelope, attempts=attempts), ("KafkaConnect", "Spring"))
        sizes.add(message.size)
    assert len(sizes) == 1


def test_our_headers_stay_below_8_kib():
    long = "ä" * 10_000
    origin = Origin(long, 2**31, 2**127, times.MAX_MS * 99)
    envelope = Envelope("d", Confidence.Certain, origin, origin, long, 10**30, times.MAX_MS, times.MAX_MS)
    envelope = replace(envelope, failure=Failure(long, long, Category.Validation, 599, long), reason=long)
    envelope = replace(envelope, due_at=-(10**20), replays=10**18, replay=long, id=long)
    written = add_headers(Message(None, None), envelope)
    assert len(written.headers) == len(OUR_HEADERS)
    assert written.size <= 8_192


def test_a_redis_origin_is_written_as_its_entry_id():
    offset = 1_700_000_000_000 << 64 | 5
    written = add_headers(Message(None, None), Envelope(origin=Origin("s", 0, offset)))
    assert dict(written.headers)["dlq-origin-offset"] == b"1700000000000-5"
    assert read_own_envelope(written).origin.offset == offset


def test_an_empty_envelope_is_recognised_as_ours():
    assert read_own_envelope(add_headers(Message(None, None), Envelope())) is not None
    assert read_own_envelope(Message(None, None, (("dlq-replays", b"1"),))) is None


def test_compat_headers_are_read_as_those_of_the_other_systems():
    envelope = Envelope(
        origin=Origin("orders", 3, 9, 1_700_000_000_000), group="billing", failure=Failure("x.E", "boom", stack="at x")
    )
    written = dict(add_headers(Message(None, b"v"), envelope, ("KafkaConnect", "Spring")).headers)
    foreign = Message(None, b"v", tuple((name, value) for name, value in written.items() if name not in OUR_HEADERS))
    for dialect in ("kafka-connect", "spring-dlt"):
        read = read_envelope(foreign, Place("d", 0, 0), dialect)
        assert (read.origin.topic, read.origin.partition, read.origin.offset) == ("orders", 3, 9)
        assert (read.group, read.failure.type, read.failure.message) == ("billing", "x.E", "boom")
    ours = add_headers(Message(None, b"v"), envelope, ("KafkaConnect", "Spring"))
    assert restore_message(ours, read_envelope(ours, Place("d", 0, 0))).headers == ()


def test_compat_headers_omit_unknown_and_oversized_values():
    written = add_headers(Message(None, None), Envelope(origin=Origin(None, 2**31, 2**63)), ("Spring",))
    assert {name for name, _ in written.headers if name.startswith("kafka_dlt-original")} == set()
    connect = add_headers(Message(None, None), Envelope(), ("KafkaConnect",))
    assert "__connect.errors.topic" not in dict(connect.headers)


def test_an_unknown_compat_system_is_rejected():
    with pytest.raises(ValueError, match="KafkaConnect, Spring"):
        add_headers(Message(None, None), Envelope(), ("Pulsar",))


def test_spoofed_headers_are_renamed_and_the_replay_count_stays():
    spoofed = texts("dlq-", attempts=9, id="x") + texts("dlq-", replays=2, replay="uid") + (("user", None),)
    message = rename_spoofed(Message(None, None, spoofed))
    assert message.headers == (
        ("x-orig-dlq-attempts", b"9"),
        ("x-orig-dlq-id", b"x"),
        ("dlq-replays", b"2"),
        ("dlq-replay", b"uid"),
        ("user", None),
    )
    assert rename_spoofed(message) is message


def test_replay_headers_are_overwritten():
    message = Message(b"k", b"v", (("dlq-replays", b"1"), ("user", b"x"), ("dlq-replay", b"old")))
    sent = (("dlq-id", b"name"), ("dlq-replays", b"2"), ("dlq-replay", b"new"))
    assert add_replay_headers(message, "name", "new", 2).headers == (("user", b"x"), *sent)
