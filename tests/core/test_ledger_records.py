"""Tests of the keys and values of ledger records."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from deadletter.core.ledger import records
from deadletter.core.ledger.records import LedgerError, UnknownRecord
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span


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
def test_parsing_inverts_building_a_key(key, parsed):
    assert records.parse_key(key) == parsed


@pytest.mark.parametrize(
    "key",
    [b"", b"lease/x", b"settled/o/1", b"settled/o/1/replayed/1/x", b"settled/o/x/replayed/1", b"tally/u/0/x", b"\xff"],
)
def test_a_key_of_an_unknown_kind_or_shape_is_skipped(key):
    assert records.parse_key(key) is None


@dataclass
class Heartbeat:
    """A heartbeat with fewer fields than WorkerStatus."""

    pod: str
    at: int = 0
    paused: str = ""


def test_fields_of_a_later_release_are_ignored_and_missing_ones_have_their_default():
    key = b"courier/p"
    assert records.decode_worker_status(
        key, records.encode_worker_status(key, {"pod": "p", "zone": "b", "at": 7}), Heartbeat
    ) == Heartbeat("p", 7)
    progress = PartitionProgress(Span(0, 1, 9), 5, 3, skipped={"Throttled": 2}, phase="Cooling")
    content = msgspec.json.decode(records.encode_progress(key, progress)[5:])
    content = {name: value for name, value in content.items() if name != "bytes"} | {"cooled": 1}
    assert records.decode_progress(key, records.seal(key, msgspec.json.encode(content))) == progress


@pytest.mark.parametrize("content", [b"{}", b'{"pod": 3}', b'{"pod": "p", "at": "noon"}', b"[]"])
def test_intact_content_of_another_shape_is_of_a_later_release(content):
    with pytest.raises(UnknownRecord, match="courier/p.*Upgrade"):
        records.decode_worker_status(b"courier/p", records.seal(b"courier/p", content), Heartbeat)


@pytest.mark.parametrize("value", [b"\x02", b"\x02rest"])
def test_another_version_is_of_a_later_release_whatever_its_layout(value):
    with pytest.raises(UnknownRecord, match=r"tally/u/0: version 2.*Upgrade") as refused:
        records.unseal(b"tally/u/0", value)
    assert refused.value.key == b"tally/u/0"


def test_a_corrupt_record_is_not_mistaken_for_one_of_a_later_release():
    good = records.encode_worker_status(b"courier/p", {"pod": "p"})
    for value in (b"", good[:3], good[:-1], good[:-1] + b"x", records.seal(b"courier/p", b"{")):
        with pytest.raises(LedgerError) as refused:
            records.decode_worker_status(b"courier/p", value, Heartbeat)
        assert not isinstance(refused.value, UnknownRecord)


def test_decoding_inverts_encoding():
    key = b"tally/u/0"
    progress = PartitionProgress(
        Span(0, 1, 9), 5, 3, skipped={"LoopCap": 1}, groups={"ab": 2}, samples=("0-1",), reason="Running"
    )
    assert records.decode_progress(key, records.encode_progress(key, progress)) == progress
    assert records.decode_mark(key, records.encode_mark(key, 7, 8)) == (7, 8)
    assert records.decode_worker_status(
        key, records.encode_worker_status(key, {"pod": "p", "at": 1}), Heartbeat
    ) == Heartbeat("p", 1)
    chunk = BitMap([1, 65_535])
    assert records.decode_chunk(key, records.encode_chunk(key, chunk)) == chunk


def test_the_highest_offset_of_a_chunk():
    key = records.parse_key(b"produced/uid@0/orders/0/3")
    assert records.highest_offset(key, BitMap([1, 9])) == 3 * 65_536 + 9
    assert records.highest_offset(key, BitMap()) == -1


@given(st.binary(max_size=40), st.integers(0, 100), st.integers(1, 255))
def test_a_flipped_byte_is_detected(content, at, flip):
    key = b"settled/o/0/replayed/0"
    value = bytearray(records.seal(key, content))
    value[at % len(value)] ^= flip
    with pytest.raises(LedgerError, match="settled/o/0/replayed/0"):
        records.unseal(key, bytes(value))


def test_a_corrupt_chunk_is_an_error_never_an_empty_set():
    key = b"settled/o/0/replayed/0"
    good = records.encode_chunk(key, BitMap([1]))
    for value, problem in (
        (b"", "too short"),
        (b"\x09" + good[1:], "version 9"),
        (good[:-1], "checksum"),
        (records.seal(key, b"odd"), "bitmap cannot be read"),
        (records.seal(key, b""), "bitmap cannot be read"),
    ):
        with pytest.raises(LedgerError, match=problem):
            records.decode_chunk(key, value)
    with pytest.raises(LedgerError, match="checksum"):
        records.decode_chunk(b"settled/o/1/replayed/0", good)
    with pytest.raises(LedgerError, match="content cannot be read"):
        records.decode_progress(key, records.seal(key, b"{}"))
