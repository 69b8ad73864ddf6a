"""Ledger records that a later version may write and this one does not know."""

import json
from typing import Any

from pyroaring import BitMap

from deadletter.core.ledger import records
from deadletter.core.replay_progress import PartitionProgress, Span
from deadletter.wall_clock import now_ms

PROGRESS = PartitionProgress(
    Span(0, 0, 9), 1, 9, scanned=9, matched=9, replayed=8, skipped={"Throttled": 1}, phase="Cooling"
)
Record = tuple[bytes, bytes]


def sealed_json(key: str, content: Any) -> Record:
    """Return a record with a valid value whose content is JSON."""
    return key.encode(), records.seal(key.encode(), json.dumps(content).encode())


def with_version_2(key: bytes, content: bytes = b"\x01\x02\x03") -> Record:
    """Return a record whose value has the layout of another version."""
    return key, b"\x02" + content


def settled(box: str, partition: int, settled_as: str, *offsets: int) -> Record:
    """Return a record of offsets below 65,536 that are settled in any way, known or not."""
    key = f"settled/{box}/{partition}/{settled_as}/0".encode()
    return key, records.encode_chunk(key, BitMap(offsets))


def extended_progress(uid: str, **more: Any) -> Record:
    """Return a progress record with fields, a skip reason and a phase of a later version."""
    known = json.loads(records.encode_progress(b"", PROGRESS)[5:])
    return sealed_json(f"tally/{uid}/0", {**known, "cooled": 3, "span": {**known["span"], "epoch": 4}, **more})


def extended_heartbeat(pod: str, **more: Any) -> Record:
    """Return a heartbeat with one more field and only two of today's fields."""
    return sealed_json(f"courier/{pod}", {"pod": pod, "at": now_ms(), "zone": "b", **more})


def unreadable() -> list[Record]:
    """Return records that a reader must skip."""
    return [
        (b"lease/pod-0", b"\x01anything"),
        (b"quota", b""),
        (b"\xff\xfe/1", b"\x01"),
        sealed_json("tally/uid-6/0/eu", {}),
        sealed_json("tally/uid-6/first", {}),
        sealed_json("courier/pod-6/eu", {"pod": "pod-6"}),
        extended_heartbeat("pod-7", at="noon"),
        extended_progress("uid-7", replayed="many"),
        with_version_2(records.worker_key("pod-8")),
        with_version_2(records.progress_key("uid-8", 0)),
    ]
