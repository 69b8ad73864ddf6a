"""Tests of the progress of a Replay."""

from deadletter.core.replay_progress import PartitionProgress, Span


def test_evolve_returns_a_changed_copy():
    progress = PartitionProgress(Span(0, 0, 10), 5, 0)
    assert progress.evolve(next=3).next == 3
    assert progress.next == 0
