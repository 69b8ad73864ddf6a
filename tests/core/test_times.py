"""Tests of parsing and rendering times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core import times


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-16T00:00:00Z", 1_794_787_200_000),
        ("2026-11-16T00:00:00.123Z", 1_794_787_200_123),
        ("2026-11-16T01:00:00+01:00", 1_794_787_200_000),
        ("2026-11-16", 1_794_787_200_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_parses_iso_8601(text, ms):
    assert times.parse(text) == ms


@given(st.integers(times.MIN_MS, times.MAX_MS))
def test_parsing_inverts_rendering(ms):
    assert times.parse(times.render(ms)) == ms


def test_renders_whole_seconds_without_a_fraction():
    assert times.render(1_794_787_200_000) == "2026-11-16T00:00:00Z"
    assert times.render(1_794_787_200_020) == "2026-11-16T00:00:00.020Z"


def test_rejects_malformed_times():
    with pytest.raises(ValueError, match="ISO-8601"):
        times.parse("yesterday")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-(2**63), "0001-01-01T00:00:00Z"), (2**64, "9999-12-31T23:59:59.999Z"), (-1, "1969-12-31T23:59:59.999Z")],
)
def test_clamps_times_out_of_range(ms, text):
    assert times.render(ms) == text


def test_render_second_rounds_down_to_the_second():
    assert times.render_second(1_794_787_200_999) == "2026-11-16T00:00:00Z"
    assert times.render_second(-1) == "1969-12-31T23:59:59Z"
