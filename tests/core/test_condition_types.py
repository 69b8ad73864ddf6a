"""Tests of the list of condition types."""

from deadletter.core import condition_types


def test_every_condition_type_has_an_expected_status():
    types = {value for name, value in vars(condition_types).items() if name.isupper() and isinstance(value, str)}
    assert set(condition_types.EXPECTED_STATUS) == types
    assert set(condition_types.EXPECTED_STATUS.values()) == {"True", "False"}
