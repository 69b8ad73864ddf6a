"""Tests of the settled offsets of one box partition."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from deadletter.core.ledger import records
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import SettledAs

OFFSETS = st.lists(st.integers(0, 300_000) | st.integers(0, 2**62), max_size=30)


def offsets_settled_as(settled: Settlements, kind: str) -> list[int]:
    return [offset for offset in settled if settled.is_settled_as(kind, offset)]


def test_an_unknown_kind_of_settlement_counts_and_its_record_is_never_rewritten():
    key = b"settled/o/1/quarantined/0"
    settled = Settlements("o", 1)
    assert settled.load(key, records.encode_chunk(key, BitMap([3, 4]))) == [3, 4]
    settled.add(SettledAs.Replayed, [4, 5])
    settled.remove(SettledAs.Archived, [3])
    assert list(settled) == [3, 4, 5]
    assert offsets_settled_as(settled, "quarantined") == [3, 4]
    assert [written for written, _ in settled.take_changed_records()] == [b"settled/o/1/replayed/0"]
    settled.drop_below(65_536)  # retention deleted the letters themselves
    assert list(settled) == []


@given(st.lists(st.tuples(st.sampled_from(SettledAs), OFFSETS), max_size=8))
def test_settled_offsets_are_the_union_of_all_kinds(history):
    settled, written = Settlements("o", 1), {}
    for settled_as, offsets in history:
        settled.add(settled_as, offsets)
        written.update(settled.take_changed_records())
    read = Settlements("o", 1)
    for key, value in written.items():
        read.load(key, value)
    everything = {offset for _, offsets in history for offset in offsets}
    for found in (settled, read):
        assert sorted(everything) == list(found)
        assert len(found) == len(everything)
        assert all(offset in found for offset in everything)
        for settled_as in SettledAs:
            assert offsets_settled_as(found, settled_as) == sorted(
                {o for reason, offsets in history if reason is settled_as for o in offsets}
            )
    assert read.take_changed_records() == []


def test_kinds_of_settlement_are_kept_apart():
    settled, read = Settlements("o", 1), Settlements("o", 1)
    settled.add(SettledAs.Replayed, [1, 70_000])
    settled.add(SettledAs.Archived, [1, 2])
    fresh = [read.load(key, value) for key, value in settled.take_changed_records()]
    assert sorted(offset for some in fresh for offset in some) == [1, 2, 70_000]  # each is new once
    assert (
        offsets_settled_as(read, SettledAs.Replayed),
        offsets_settled_as(read, SettledAs.Archived),
        offsets_settled_as(read, SettledAs.Buried),
    ) == ([1, 70_000], [1, 2], [])
    assert (list(read), len(read)) == ([1, 2, 70_000], 3)


def test_first_unsettled_skips_whole_chunks():
    settled = Settlements("o", 1)
    assert settled.first_unsettled(7) == 7
    settled.add(SettledAs.Replayed, range(10, 131_072 + 5))
    assert [settled.first_unsettled(start) for start in (9, 10, 70_000, 131_072, 131_077)] == [9, *[131_077] * 4]
    settled.add(SettledAs.Discarded, [131_078])
    assert settled.first_unsettled(131_078) == 131_079


def test_contains_accepts_only_offsets():
    settled = Settlements("o", 1)
    settled.add(SettledAs.Replayed, [5])
    assert 5 in settled
    assert "5" not in settled
    assert 65_541 not in settled


def test_records_of_other_boxes_and_kinds_are_ignored():
    settled = Settlements("o", 1)
    others = (
        records.settled_key("o", 2, SettledAs.Replayed, 0),
        records.settled_key("p", 1, SettledAs.Replayed, 0),
    )
    for key in (*others, b"tally/u/1", b"lease/o/1"):
        settled.load(key, records.encode_chunk(key, BitMap([1])))
    assert len(settled) == 0


def test_a_tombstone_empties_only_its_chunk():
    settled = Settlements("o", 1)
    settled.add(SettledAs.Replayed, [1, 2])
    settled.add(SettledAs.Archived, [2])
    settled.load(records.settled_key("o", 1, SettledAs.Replayed, 0), None)
    assert list(settled) == [2]
    settled.load(records.settled_key("o", 1, SettledAs.Archived, 0), None)
    assert list(settled) == []


def test_a_restored_letter_is_open_again():
    settled = Settlements("o", 1)
    settled.add(SettledAs.Archived, [1, 2])
    settled.take_changed_records()
    settled.remove(SettledAs.Archived, [2, 70_000])
    assert (
        settled.is_settled_as(SettledAs.Archived, 1),
        settled.is_settled_as(SettledAs.Archived, 2),
        list(settled),
    ) == (True, False, [1])
    ((key, value),) = settled.take_changed_records()
    assert records.decode_chunk(key, value) == BitMap([1])


def test_chunks_below_the_start_are_forgotten_with_tombstones():
    settled = Settlements("o", 1)
    settled.add(SettledAs.Replayed, [1, 65_536, 140_000])
    assert settled.drop_below(131_072) == [
        (b"settled/o/1/replayed/0", None),
        (b"settled/o/1/replayed/1", None),
    ]
    assert list(settled) == [140_000]
    assert [key for key, _ in settled.take_changed_records()] == [b"settled/o/1/replayed/2"]
