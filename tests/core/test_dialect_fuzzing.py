"""Fuzz tests: no bytes make reading raise, and restoring never adds anything."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadletter.core.dialects.base import DialectError
from deadletter.core.dialects.reader import read_envelope, restore_message
from deadletter.core.dialects.registry import DIALECT_NAMES, RANKS_BY_MARKER
from deadletter.core.fingerprint import fingerprint
from deadletter.core.headers import OUR_HEADERS, add_headers, rename_spoofed
from deadletter.core.letters import Letter, Message, Place
from deadletter.core.policy import DEFAULT_POLICY, decide
from deadletter.core.times import render
from tests.core.fixtures import SAMPLES

KNOWN = sorted({*RANKS_BY_MARKER, *OUR_HEADERS, *(name for sample in SAMPLES for name, _ in sample.headers)})
REAL = sorted({value for sample in SAMPLES for _, value in sample.headers if value is not None})
VALUES = st.none() | st.binary(max_size=24) | st.sampled_from(REAL) | st.integers().map(lambda n: str(n).encode())
BODIES = st.none() | st.binary(max_size=64) | st.sampled_from([sample.value or b"" for sample in SAMPLES])
KEYS = st.none() | st.binary(max_size=24) | st.sampled_from([sample.key or b"" for sample in SAMPLES])
MESSAGES = st.builds(
    Message,
    KEYS,
    BODIES | st.tuples(BODIES, st.binary(max_size=4)).map(lambda parts: (parts[0] or b"")[::-1] + parts[1]),
    st.lists(st.tuples(st.sampled_from(KNOWN) | st.text(max_size=8), VALUES), max_size=10).map(tuple),
    st.integers(-(2**63), 2**63 - 1),
)
PLACE = Place("orders.dlq", 0, 1)


@settings(max_examples=500)
@given(MESSAGES, st.booleans())
def test_reading_never_raises_and_truncates_texts(message, read_values):
    _read(message, read_values)


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_random_letters_are_read(seed):
    """Plain random numbers are faster than hypothesis structures, and the seed makes every run the same."""
    random = Random(seed)
    for number in range(1_000):
        _read(_random_message(random), read_values=bool(number % 2))


def _random_message(random: Random) -> Message:
    sample = random.choice(SAMPLES)
    headers = [_random_header(random) for _ in range(random.randrange(8))] + list(sample.headers)
    random.shuffle(headers)
    value = sample.value or b""
    cut = random.randrange(len(value) + 1)
    return Message(
        sample.key,
        value[:cut] + random.randbytes(random.randrange(3)) + value[cut:],
        tuple(headers),
        _random_time(random),
    )


def _random_time(random: Random) -> int:
    return random.randrange(-(2**63), 2**63)


def _random_header(random: Random) -> tuple[str, bytes | None]:
    value = random.choice((None, b"", random.randbytes(random.randrange(20)), random.choice(REAL)))
    return random.choice(KNOWN), value


def _read(message: Message, read_values: bool) -> None:
    envelope = read_envelope(message, PLACE, read_values=read_values, origin="fallback")
    failure = envelope.failure
    assert envelope.dialect in DIALECT_NAMES
    assert (envelope.attempts >= 0, envelope.replays >= 0) == (True, True)
    assert (len(failure.type) <= 256, len(failure.message) <= 2_048, len(failure.stack) <= 8_192) == (True,) * 3
    for when in (envelope.failed_at, envelope.first_failed_at, envelope.origin.timestamp, envelope.due_at):
        assert when is None or render(when)
    assert len(fingerprint(failure)) == 8
    decide(Letter(message, PLACE, envelope), DEFAULT_POLICY, 0, 0.5)
    add_headers(rename_spoofed(message), envelope, ("KafkaConnect", "Spring"))


@settings(max_examples=500)
@given(MESSAGES, st.sampled_from(DIALECT_NAMES))
def test_restoring_only_removes_headers(message, name):
    envelope = read_envelope(message, PLACE, name)
    try:
        restored = restore_message(message, envelope)
    except DialectError:
        return
    assert set(restored.headers) <= set(message.headers)
    assert restored.timestamp == message.timestamp
