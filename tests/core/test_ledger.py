"""The ledger's keys and values, and the settlements of one box partition."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from deadletter.core.ledger import records
from deadletter.core.ledger.records import LedgerError, UnknownRecord
from deadletter.core.ledger.settlements import Settlements
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span

OFFSETS = st.lists(st.integers(0, 300_000) | st.integers(0, 2**62), max_size=30)


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        (
            records.settled_key("o.dlq", 3, SettledAs.Replayed, 2),
            records.Key("settled", "o.dlq", 3, 2, SettledAs.Replayed),
        ),
        (records.selected_key("uid", 3, 2), records.Key("selected", "uid", 3, 2)),
        (records.produced_key("uid", 7, "o", 3, 2), records.Key("produced", "uid", 3, 2, topic="o", settler=7)),
        (b"produced/uid/orders/3/2", records.Key("produced", "uid", 3, 2, topic="orders")),
        (records.progress_key("uid", 3), records.Key("tally", "uid", 3)),
        (records.mark_key("o.dlq", 3), records.Key("mark", "o.dlq", 3)),
        (records.worker_key("pod-1"), records.Key("courier", "pod-1")),
    ],
)
def test_a_key_is_read_as_it_was_written(key, parsed):
    assert records.parse_key(key) == parsed


@pytest.mark.parametrize(
    "key",
    [b"", b"lease/x", b"settled/o/1", b"settled/o/1/replayed/1/x", b"settled/o/x/replayed/1", b"tally/u/0/x", b"\xff"],
)
def test_a_key_of_an_unknown_kind_or_shape_is_to_be_skipped(key):
    assert records.parse_key(key) is None


def test_a_letter_settled_for_an_unknown_reason_is_settled_and_its_record_left_alone():
    key = b"settled/o/1/quarantined/0"
    settled = Settlements("o", 1)
    assert settled.load(key, records.encode_chunk(key, BitMap([3, 4]))) == [3, 4]
    settled.add(SettledAs.Replayed, [4, 5])
    settled.remove(SettledAs.Archived, [3])
    assert list(settled) == [3, 4, 5]
    assert settled.offsets_settled_as("quarantined") == [3, 4]
    assert [written for written, _ in settled.take_changed_records()] == [b"settled/o/1/replayed/0"]
    settled.drop_below(65_536)  # retention deleted the letters themselves
    assert list(settled) == []


@dataclass
class Word:
    """A heartbeat."""

    pod: str
    at: int = 0
    paused: str = ""


def test_fields_of_a_later_release_are_ignored_and_missing_ones_have_their_default():
    key = b"courier/p"
    assert records.decode_worker_status(
        key, records.encode_worker_status(key, {"pod": "p", "zone": "b", "at": 7}), Word
    ) == Word("p", 7)
    tally = PartitionProgress(Span(0, 1, 9), 5, 3, skipped={"Throttled": 2}, phase="Cooling")
    content = msgspec.json.decode(records.encode_progress(key, tally)[5:])
    content = {name: value for name, value in content.items() if name != "bytes"} | {"cooled": 1}
    assert records.decode_progress(key, records.seal(key, msgspec.json.encode(content))) == tally


@pytest.mark.parametrize("content", [b"{}", b'{"pod": 3}', b'{"pod": "p", "at": "noon"}', b"[]"])
def test_intact_content_of_another_shape_is_of_a_later_release(content):
    with pytest.raises(UnknownRecord, match="courier/p.*Upgrade"):
        records.decode_worker_status(b"courier/p", records.seal(b"courier/p", content), Word)


@pytest.mark.parametrize("value", [b"\x02", b"\x02rest"])
def test_another_version_is_of_a_later_release_whatever_its_layout(value):
    with pytest.raises(UnknownRecord, match=r"tally/u/0: version 2.*Upgrade") as refused:
        records.unseal(b"tally/u/0", value)
    assert refused.value.key == b"tally/u/0"


def test_a_broken_record_is_never_taken_for_one_of_a_later_release():
    good = records.encode_worker_status(b"courier/p", {"pod": "p"})
    for value in (b"", good[:3], good[:-1], good[:-1] + b"x", records.seal(b"courier/p", b"{")):
        with pytest.raises(LedgerError) as refused:
            records.decode_worker_status(b"courier/p", value, Word)
        assert not isinstance(refused.value, UnknownRecord)


def test_values_survive_writing():
    key = b"tally/u/0"
    tally = PartitionProgress(
        Span(0, 1, 9), 5, 3, skipped={"LoopCap": 1}, groups={"ab": 2}, samples=("0-1",), reason="Running"
    )
    assert records.decode_progress(key, records.encode_progress(key, tally)) == tally
    assert records.decode_mark(key, records.encode_mark(key, 7, 8)) == (7, 8)
    assert records.decode_worker_status(key, records.encode_worker_status(key, {"pod": "p", "at": 1}), Word) == Word(
        "p", 1
    )
    chunk = BitMap([1, 65_535])
    assert records.decode_chunk(key, records.encode_chunk(key, chunk)) == chunk


def test_the_highest_offset_of_a_chunk():
    key = records.parse_key(b"produced/uid@0/orders/0/3")
    assert records.highest_offset(key, BitMap([1, 9])) == 3 * 65_536 + 9
    assert records.highest_offset(key, BitMap()) == -1


@given(st.binary(max_size=40), st.integers(0, 100), st.integers(1, 255))
def test_a_flipped_byte_never_passes(content, at, flip):
    key = b"settled/o/0/replayed/0"
    value = bytearray(records.seal(key, content))
    value[at % len(value)] ^= flip
    with pytest.raises(LedgerError, match="settled/o/0/replayed/0"):
        records.unseal(key, bytes(value))


def test_a_corrupt_chunk_is_an_error_never_an_empty_set():
    key = b"settled/o/0/replayed/0"
    good = records.encode_chunk(key, BitMap([1]))
    for value, why in (
        (b"", "too short"),
        (b"\x09" + good[1:], "version 9"),
        (good[:-1], "checksum"),
        (records.seal(key, b"odd"), "bitmap cannot be read"),
        (records.seal(key, b""), "bitmap cannot be read"),
    ):
        with pytest.raises(LedgerError, match=why):
            records.decode_chunk(key, value)
    with pytest.raises(LedgerError, match="checksum"):
        records.decode_chunk(b"settled/o/1/replayed/0", good)
    with pytest.raises(LedgerError, match="content cannot be read"):
        records.decode_progress(key, records.seal(key, b"{}"))


@given(st.lists(st.tuples(st.sampled_from(SettledAs), OFFSETS), max_size=8))
def test_settlements_are_the_union_of_all_reasons(history):
    settled, written = Settlements("o", 1), {}
    for why, offsets in history:
        settled.add(why, offsets)
        written.update(settled.take_changed_records())
    read = Settlements("o", 1)
    for key, value in written.items():
        read.load(key, value)
    everything = {offset for _, offsets in history for offset in offsets}
    for found in (settled, read):
        assert sorted(everything) == list(found)
        assert len(found) == len(everything)
        assert all(offset in found for offset in everything)
        for why in SettledAs:
            assert found.offsets_settled_as(why) == sorted(
                {o for reason, offsets in history if reason is why for o in offsets}
            )
    assert read.take_changed_records() == []


def test_reasons_stay_apart_and_add_up():
    settled, read = Settlements("o", 1), Settlements("o", 1)
    settled.add(SettledAs.Replayed, [1, 70_000])
    settled.add(SettledAs.Archived, [1, 2])
    fresh = [read.load(key, value) for key, value in settled.take_changed_records()]
    assert sorted(offset for some in fresh for offset in some) == [1, 2, 70_000]  # each is new once
    assert (
        read.offsets_settled_as(SettledAs.Replayed),
        read.offsets_settled_as(SettledAs.Archived),
        read.offsets_settled_as(SettledAs.Buried),
    ) == ([1, 70_000], [1, 2], [])
    assert (list(read), len(read)) == ([1, 2, 70_000], 3)


def test_the_first_open_offset_lies_behind_whole_chunks():
    settled = Settlements("o", 1)
    assert settled.first_unsettled(7) == 7
    settled.add(SettledAs.Replayed, range(10, 131_072 + 5))
    assert [settled.first_unsettled(start) for start in (9, 10, 70_000, 131_072, 131_077)] == [9, *[131_077] * 4]
    settled.add(SettledAs.Discarded, [131_078])
    assert settled.first_unsettled(131_078) == 131_079


def test_contains_asks_for_offsets_only():
    settled = Settlements("o", 1)
    settled.add(SettledAs.Replayed, [5])
    assert 5 in settled
    assert "5" not in settled
    assert 65_541 not in settled


def test_records_of_other_boxes_and_kinds_are_passed_over():
    settled = Settlements("o", 1)
    others = (
        records.settled_key("o", 2, SettledAs.Replayed, 0),
        records.settled_key("p", 1, SettledAs.Replayed, 0),
    )
    for key in (*others, b"tally/u/1", b"lease/o/1"):
        settled.load(key, records.encode_chunk(key, BitMap([1])))
    assert len(settled) == 0


def test_a_tombstone_empties_its_chunk_alone():
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
