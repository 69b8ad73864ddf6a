"""Tests of the selection of letters."""

import pytest

from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Category, Failure
from deadletter.core.selection import Selection
from tests.core.letters import NOW, letter

FAILED = Failure("x.Timeout", "late", Category.Network, stack="at a.b(c)")
LETTER = letter(3, FAILED, value=b'{"total": 12.5}')
HASH = fingerprint(FAILED)


@pytest.mark.parametrize(
    ("selection", "is_selected"),
    [
        (Selection(), True),
        (Selection(ids=["2-7", "0-1"]), True),
        (Selection(ids=["0-1"]), False),
        (Selection(fingerprint=HASH), True),
        (Selection(fingerprint="00000000"), False),
        (Selection(since=NOW), True),
        (Selection(since=NOW + 1), False),
        (Selection(until=NOW + 1), True),
        (Selection(until=NOW), False),
        (Selection(where="attempts == 3"), True),
        (Selection(where="attempts == 3", ids=["0-1"]), False),
        (Selection(where="payload.nothing == 1"), None),
        (Selection(where="payload.nothing == 1", since=NOW + 1), False),
    ],
)
def test_a_selected_letter_meets_every_condition(selection, is_selected):
    assert selection.matches(LETTER, NOW) is is_selected


@pytest.mark.parametrize(
    ("selection", "is_enough"),
    [
        (Selection(), True),
        (Selection(fingerprint="0123abcd", limit=5), True),
        (Selection(where="true"), False),
        (Selection(since=1), False),
        (Selection(until=1), False),
    ],
)
def test_a_summary_is_enough_without_times_and_expression(selection, is_enough):
    assert selection.needs_only_summary is is_enough
    assert selection.matches_all is (selection == Selection())
