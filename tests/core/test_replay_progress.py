"""Tests of the progress of a Replay."""

import pytest

from deadletter.core.replay_progress import PartitionProgress, Span, finish_reason


def test_evolve_returns_a_changed_copy():
    progress = PartitionProgress(Span(0, 0, 10), 5, 0)
    assert progress.evolve(next=3).next == 3
    assert progress.next == 0


def test_archived_and_discarded_letters_are_processed_too():
    assert PartitionProgress(Span(0, 0, 10), 5, 0, replayed=1, archived=2, discarded=4).processed == 7


@pytest.mark.parametrize(
    ("action", "everything", "some"),
    [
        ("Republish", "AllReplayed", "PartlyReplayed"),
        ("Archive", "AllArchived", "PartlyArchived"),
        ("Discard", "AllDiscarded", "PartlyDiscarded"),
    ],
)
def test_the_reason_names_the_action_and_whether_letters_were_left(action, everything, some):
    assert finish_reason(action, 2, 2) == everything
    assert finish_reason(action, 2, 1) == some
    assert finish_reason(action, 2, 0) == finish_reason(action, 0, 0) == "NothingMatched"
