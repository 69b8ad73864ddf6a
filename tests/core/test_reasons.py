"""Tests of the list of reasons."""

from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import Skip


def test_every_reason_has_its_name_as_value_and_a_meaning():
    for name, reason in Reason.__members__.items():
        assert (name, reason.value) == (reason, name)
        assert reason.meaning.endswith(".")
    assert {skip.value for skip in Skip} <= set(Reason.__members__)
    assert Reason("Expired") is Reason.Expired
