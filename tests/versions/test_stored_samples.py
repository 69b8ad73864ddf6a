"""Stored data of released versions is read and continued: ledgers, messages, offset metadata, assignments.

The packages of those releases wrote the files in `samples/`, which are never edited.
"""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from deadletter.api.worker_config import CourierAssignment, LiveConfig, RedriveAssignment, ReplayAssignment
from deadletter.brokers.kafka.subscription import offset_metadata
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.redis import entries
from deadletter.core.dialects.reader import read_letter
from deadletter.core.headers import read_headers
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger import records
from deadletter.core.letters import Category, Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span

FOLDER = Path(__file__).parent / "samples"
PROGRESS = PartitionProgress(
    Span(2, 10, 70_000),
    1_763_000_000_000,
    60_000,
    scanned=50_000,
    matched=40_000,
    replayed=30_000,
    archived=5,
    discarded=7,
    skipped={"LoopCap": 3, "NoOrigin": 4},
    bytes=123_456,
    groups={"30111fa1": 40_000},
    targets={"orders": 30_000},
    samples=("2-10", "2-11"),
    failed_again=12,
    phase="Failed",
    reason="FailureShareExceeded",
    message="12 of 40 failed again",
    updated_at=1_763_000_060_000,
)
STATUS = WorkerStatus(
    "orders-courier-0",
    "Open",
    paused="CircuitOpen",
    message="503 from billing.shop.svc:80",
    parked=17,
    at=1_763_000_061_000,
)


@pytest.fixture(params=["0.2.0", "0.2.1"])
def sample(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The data that one release wrote."""
    found: dict[str, Any] = json.loads((FOLDER / f"{request.param}.json").read_text())
    return found


def record(sample: dict[str, Any], name: str) -> tuple[bytes, bytes]:
    key, value = sample["ledger"][name]
    return b64decode(key), b64decode(value)


def message(sample: dict[str, Any], name: str) -> Message:
    """Return a message as it is stored in a box."""
    one = sample["messages"][name]
    headers = tuple((name, None if value is None else b64decode(value)) for name, value in one["headers"])
    return Message(b64decode(one["key"]), b64decode(one["value"]), headers, one["timestamp"])


@pytest.mark.parametrize("settled_as", list(SettledAs))
def test_settled_offsets_are_read_and_written_alike(sample: dict[str, Any], settled_as: SettledAs) -> None:
    key, value = record(sample, f"settled {settled_as}")
    assert key == records.settled_key("orders.dlq", 2, settled_as, 1)
    assert records.decode_chunk(key, value) == BitMap([0, 7, 65_535])
    assert records.encode_chunk(key, BitMap([0, 7, 65_535])) == value


def test_selected_and_produced_offsets_are_read(sample: dict[str, Any]) -> None:
    key, value = record(sample, "selected")
    assert (key, records.decode_chunk(key, value)) == (records.selected_key("uid-1", 2, 0), BitMap([3, 4, 5]))
    key, value = record(sample, "produced")
    assert (key, records.decode_chunk(key, value)) == (
        records.produced_key("uid-1", 2, "orders", 0, 0),
        BitMap([9]),
    )


def test_progress_marks_and_heartbeats_are_read_and_written_alike(sample: dict[str, Any]) -> None:
    key, value = record(sample, "tally")
    assert (key, records.decode_progress(key, value)) == (records.progress_key("uid-1", 2), PROGRESS)
    assert records.encode_progress(key, PROGRESS) == value
    key, value = record(sample, "mark")
    assert (key, records.decode_mark(key, value)) == (
        records.mark_key("orders.dlq", 2),
        (65_543, 1_763_000_000_123),
    )
    key, value = record(sample, "courier")
    assert (key, records.decode_worker_status(key, value, WorkerStatus)) == (
        records.worker_key("orders-courier-0"),
        STATUS,
    )


def test_every_key_of_a_ledger_is_known(sample: dict[str, Any]) -> None:
    assert all(records.parse_key(record(sample, name)[0]) for name in sample["ledger"])


def test_parked_and_buried_letters_are_read(sample: dict[str, Any]) -> None:
    parked = read_headers(dict(message(sample, "parked").headers))
    assert (parked.attempts, parked.first_failed_at, parked.due_at) == (2, 1_762_000_001_000, 1_762_000_062_000)
    envelope = read_letter(message(sample, "buried"), Place("orders.dlq", 2, 0)).envelope
    assert (envelope.origin.topic, envelope.origin.partition, envelope.origin.offset) == ("orders", 2, 41)
    assert (envelope.attempts, envelope.reason, envelope.group) == (2, "AttemptsExhausted", "30111fa1")
    assert (envelope.failure.type, envelope.failure.status) == ("Http503", 503)
    assert (envelope.failure.category, envelope.id) == (Category.Transient, "orders/2/41")


def test_entries_of_streams_are_read_and_written_alike(sample: dict[str, Any]) -> None:
    for shape in ("packed", "plain"):
        fields = [b64decode(one) for one in sample["redis entries"][shape]]
        read = entries.from_fields(fields, 0)
        assert entries.to_fields(read) == fields
        assert read.key == b"k1"


def test_the_metadata_of_an_offset_is_read_and_written_alike(sample: dict[str, Any]) -> None:
    text = sample["offset metadata"]
    unfinished = {40: Attempts(2, 1_762_000_001_000), 45: Attempts(0), 47: Attempts(1)}
    assert offset_metadata.decode(40, text) == (50, unfinished)
    assert offset_metadata.encode(40, 50, unfinished) == text


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("courier", CourierAssignment),
        ("replay", ReplayAssignment),
        ("redrive", RedriveAssignment),
        ("live", LiveConfig),
    ],
)
def test_assignments_are_read_whole(sample: dict[str, Any], name: str, model: type) -> None:
    stored = sample["assignments"][name]
    read = model.model_validate_json(json.dumps(stored))
    assert contains(json.loads(read.model_dump_json(exclude_none=True)), stored)


def contains(whole: Any, part: Any) -> bool:
    """True if every value of `part` is in `whole`, which may have more fields."""
    if isinstance(part, dict):
        return all(name in whole and contains(whole[name], value) for name, value in part.items())
    return bool(whole == part)
