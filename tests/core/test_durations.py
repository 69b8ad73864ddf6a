"""Tests of parsing and rendering durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core import durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0h", 0),
        ("0s", 0),
        ("0h0m0s", 0),
        ("1h", 3_600_000),
        ("30m", 1_800_000),
        ("10s", 10_000),
        ("500ms", 500),
        ("2h30m", 9_000_000),
        ("150m", 9_000_000),
        ("7230s", 7_230_000),
        ("1h30m10s", 5_410_000),
        ("10s30m1h", 5_410_000),
        ("100ms200ms300ms", 600),
    ],
)
def test_parses_durations_of_gep_2257(text, ms):
    assert durations.parse(text) == ms


@pytest.mark.parametrize(
    "text", ["", "1", "1m1", "1h30m10s20ms50h", "999999h", "1.5h", "-15m", " 1s", "1s\n", "1d", "1S", "١s"]
)
def test_rejects_malformed_durations(text):
    with pytest.raises(ValueError, match="a duration must be"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (3_600_000, "1h"), (9_000_000, "2h30m"), (9_010_600, "2h30m10s600ms"), (7_200_600, "2h600ms")],
)
def test_renders_in_the_largest_units(ms, text):
    assert durations.render(ms) == text


@given(st.integers(0, durations.MAX_MS))
def test_parsing_inverts_rendering(ms):
    assert durations.parse(durations.render(ms)) == ms


@pytest.mark.parametrize("ms", [-1, durations.MAX_MS + 1])
def test_rejects_durations_out_of_range(ms):
    with pytest.raises(ValueError, match="must be between"):
        durations.render(ms)
