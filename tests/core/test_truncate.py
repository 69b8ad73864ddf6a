"""Tests of truncation."""

from deadletter.core.truncate import truncate, truncate_bytes


def test_texts_are_cut_between_characters_and_marked():
    assert truncate("abcdef", 6) == "abcdef"
    assert truncate("abcdefg", 6) == "abcde…"
    assert truncate_bytes("äöü", 6) == "äöü".encode()
    assert truncate_bytes("äöüß", 6) == "ä…".encode()
    assert truncate_bytes("\ud800", 6) == b"?"
