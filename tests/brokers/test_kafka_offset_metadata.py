"""The commit metadata encodes unfinished offsets and attempts, and stays small enough for the broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.brokers.errors import LedgerCorrupt
from deadletter.brokers.kafka.subscription.offset_metadata import (
    MAX_METADATA_BYTES,
    NO_ATTEMPTS,
    Attempts,
    decode,
    encode,
    max_encoded_bytes,
)
from deadletter.brokers.kafka.subscription.progress import SourceProgress
from deadletter.workers.courier.gate import MAX_HELD_ALONE

OFFSETS = st.integers(0, 1 << 62)
ATTEMPTS = st.builds(Attempts, st.integers(1, 1 << 20), st.integers(1, 1 << 45)) | st.just(NO_ATTEMPTS)


@given(OFFSETS, st.dictionaries(st.integers(0, 100_000), ATTEMPTS, max_size=50), st.integers(0, 1_000))
def test_decoding_returns_what_was_encoded(base: int, ahead: dict[int, Attempts], more: int) -> None:
    unfinished = {base + delta: state for delta, state in sorted(ahead.items())}
    highest = max([base - 1, *unfinished]) + more
    assert decode(base, encode(base, highest, unfinished)) == (highest, unfinished)


@given(OFFSETS, st.dictionaries(st.integers(0, 100_000), ATTEMPTS, min_size=1, max_size=50))
def test_no_metadata_exceeds_the_bound_computed_before(base: int, ahead: dict[int, Attempts]) -> None:
    unfinished = {base + delta: state for delta, state in ahead.items()}
    failed = sum(state != NO_ATTEMPTS for state in unfinished.values())
    lowest, highest = min(unfinished), max(unfinished)
    assert len(encode(lowest, highest, unfinished)) <= max_encoded_bytes(len(unfinished), failed, highest - lowest)


@pytest.mark.parametrize("text", ["", "of another consumer", "{}"])
def test_metadata_of_another_consumer_means_that_nothing_was_taken(text: str) -> None:
    assert decode(7, text) == (6, {})


@pytest.mark.parametrize("text", ["dlq1:!", "dlq1:gA==", "dlq1:AQE=", "dlq1:"])
def test_truncated_metadata_is_an_error(text: str) -> None:
    with pytest.raises(LedgerCorrupt):
        decode(7, text)


def test_a_restart_skips_finished_messages() -> None:
    progress = SourceProgress(100)
    for offset in (100, 102, 105, 106):
        assert progress.take(offset) == NO_ATTEMPTS
    progress.record_attempt(102, Attempts(2, 99))
    progress.finish([100, 105])
    again = SourceProgress(*progress.snapshot())
    assert [again.take(offset) for offset in (102, 105, 106, 107)] == [Attempts(2, 99), None, NO_ATTEMPTS, NO_ATTEMPTS]


def test_the_offset_follows_the_highest_taken_when_all_are_finished() -> None:
    progress = SourceProgress(10)
    progress.take(10)
    progress.take(14)
    assert progress.snapshot(without={10, 14})[0] == 15


def test_messages_in_flight_are_kept_after_a_commit_of_unknown_outcome() -> None:
    before = SourceProgress(0)
    for offset in range(5):
        before.take(offset)
    offset, metadata = before.snapshot(without={1, 2})
    before.take(5)
    durable = SourceProgress(offset, metadata)
    durable.keep_in_flight(before)
    assert [durable.is_finished(offset) for offset in range(6)] == [False, True, True, False, False, False]
    assert durable.highest == 5


@pytest.mark.parametrize("at_once", [1, 128, 512])
def test_metadata_space_ends_before_the_broker_refuses(at_once: int) -> None:
    progress = SourceProgress(0)
    while progress.has_metadata_space(at_once):
        for _ in range(at_once):
            progress.take(progress.highest + 1)
    assert MAX_METADATA_BYTES - 8 - 6 * at_once < len(progress.snapshot()[1]) <= MAX_METADATA_BYTES


def test_hundreds_of_failed_messages_keep_their_counts_and_the_oldest_keep_their_times() -> None:
    progress = SourceProgress(0)
    for offset in range(512):
        progress.take(offset)
        progress.record_attempt(offset, Attempts(3, 1_700_000_000_000 + offset))
    lowest, metadata = progress.snapshot()
    assert len(metadata) <= MAX_METADATA_BYTES
    again = [SourceProgress(lowest, metadata).take(offset) for offset in range(512)]
    assert {state and state.count for state in again} == {3}
    kept = [offset for offset, state in enumerate(again) if state == Attempts(3, 1_700_000_000_000 + offset)]
    assert kept == list(range(len(kept)))
    assert len(kept) > 256


def test_as_many_claims_as_may_be_held_alone_leave_space_in_the_metadata() -> None:
    progress = SourceProgress(0)
    for number in range(MAX_HELD_ALONE):
        progress.take(number << 35)  # far apart: they were held for years
        progress.record_attempt(number << 35, Attempts(500, 1_700_000_000_000))
    assert len(progress.snapshot()[1]) < 3_500
    assert progress.has_metadata_space(512)
