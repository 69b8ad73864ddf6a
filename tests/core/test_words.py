"""Durations, times, names and reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core import durations, names, times
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import PartitionProgress, Skip, Span


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
def test_durations_of_gep_2257(text, ms):
    assert durations.parse(text) == ms


@pytest.mark.parametrize(
    "text", ["", "1", "1m1", "1h30m10s20ms50h", "999999h", "1.5h", "-15m", " 1s", "1s\n", "1d", "1S", "١s"]
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="a duration is"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (3_600_000, "1h"), (9_000_000, "2h30m"), (9_010_600, "2h30m10s600ms"), (7_200_600, "2h600ms")],
)
def test_durations_are_written_in_the_largest_units(ms, text):
    assert durations.render(ms) == text


@given(st.integers(0, durations.MAX_MS))
def test_a_duration_survives_writing(ms):
    assert durations.parse(durations.render(ms)) == ms


@pytest.mark.parametrize("ms", [-1, durations.MAX_MS + 1])
def test_a_duration_out_of_range_is_refused(ms):
    with pytest.raises(ValueError, match="lies between"):
        durations.render(ms)


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
def test_times(text, ms):
    assert times.parse(text) == ms


@given(st.integers(times.MIN_MS, times.MAX_MS))
def test_a_time_survives_writing(ms):
    assert times.parse(times.render(ms)) == ms


def test_whole_seconds_are_written_without_a_fraction():
    assert times.render(1_794_787_200_000) == "2026-11-16T00:00:00Z"
    assert times.render(1_794_787_200_020) == "2026-11-16T00:00:00.020Z"


def test_what_is_no_time():
    with pytest.raises(ValueError, match="ISO-8601"):
        times.parse("yesterday")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-(2**63), "0001-01-01T00:00:00Z"), (2**64, "9999-12-31T23:59:59.999Z"), (-1, "1969-12-31T23:59:59.999Z")],
)
def test_a_time_that_nobody_lives_to_see_is_written_as_the_nearest(ms, text):
    assert times.render(ms) == text


def test_boxes_are_named_after_their_source():
    assert names.dead_box_name("orders", "billing") == "orders.billing.dlq"
    assert names.dead_box_name("orders", "billing", redis=True) == "{orders}.billing.dlq"
    dead = "orders.dlq"
    assert (names.retry_box_name(dead), names.ledger_name(dead), names.archive_name(dead)) == (
        "orders.dlq.retry",
        "orders.dlq.ledger",
        "orders.dlq.archive",
    )


def test_children_fit_into_63_characters_and_stay_apart():
    assert names.child_name("orders", "courier") == "orders-courier"
    assert names.child_name("orders.eu", "courier").startswith("orders-eu-courier-")
    long = [names.child_name("q" * 200 + end, "courier") for end in "ab"]
    assert [len(name) for name in long] == [63, 63]
    assert long[0] != long[1]


def test_labels_name_the_queue():
    labels = names.labels("q" * 200, "courier")
    assert labels["deadletter.dev/queue"] == labels["app.kubernetes.io/instance"]
    assert all(len(value) <= 63 for value in labels.values())
    assert labels["app.kubernetes.io/component"] == "courier"


def test_every_reason_is_its_own_name_and_has_a_meaning():
    for name, reason in Reason.__members__.items():
        assert (name, reason.value) == (reason, name)
        assert reason.meaning.endswith(".")
    assert {skip.value for skip in Skip} <= set(Reason.__members__)
    assert Reason("Expired") is Reason.Expired


def test_a_tally_evolves():
    tally = PartitionProgress(Span(0, 0, 10), 5, 0)
    assert tally.evolve(next=3).next == 3
    assert tally.next == 0
