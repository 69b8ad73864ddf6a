"""Records that a later version may write and this one does not know."""

import json
from typing import Any

from pyroaring import BitMap

from deadletter.core.ledger import records
from deadletter.core.replay_progress import PartitionProgress, Span
from tests.brokers.staging import now

TALLY = PartitionProgress(
    Span(0, 0, 9), 1, 9, scanned=9, matched=9, replayed=8, skipped={"Throttled": 1}, phase="Cooling"
)
Record = tuple[bytes, bytes]


def sealed(key: str, content: Any) -> Record:
    """A record whose value is sound and whose content is JSON."""
    return key.encode(), records.seal(key.encode(), json.dumps(content).encode())


def of_version_2(key: bytes, content: bytes = b"\x01\x02\x03") -> Record:
    """A record whose value has another layout."""
    return key, b"\x02" + content


def settled(box: str, partition: int, why: str, *offsets: int) -> Record:
    """Offsets below 65,536 that are settled for a reason of the test's choice."""
    key = f"settled/{box}/{partition}/{why}/0".encode()
    return key, records.encode_chunk(key, BitMap(offsets))


def grown_tally(uid: str, **more: Any) -> Record:
    """A tally with fields, a skip reason and a phase of a later version."""
    known = json.loads(records.encode_progress(b"", TALLY)[5:])
    return sealed(f"tally/{uid}/0", {**known, "cooled": 3, "span": {**known["span"], "epoch": 4}, **more})


def grown_word(pod: str, **more: Any) -> Record:
    """A heartbeat with a field more and all but two of today's missing."""
    return sealed(f"courier/{pod}", {"pod": pod, "at": now(), "zone": "b", **more})


def unreadable() -> list[Record]:
    """Records that are skipped: nothing in them can be taken for something else."""
    return [
        (b"lease/pod-0", b"\x01anything"),
        (b"quota", b""),
        (b"\xff\xfe/1", b"\x01"),
        sealed("tally/uid-6/0/eu", {}),
        sealed("tally/uid-6/first", {}),
        sealed("courier/pod-6/eu", {"pod": "pod-6"}),
        grown_word("pod-7", at="noon"),
        grown_tally("uid-7", replayed="many"),
        of_version_2(records.worker_key("pod-8")),
        of_version_2(records.progress_key("uid-8", 0)),
    ]
