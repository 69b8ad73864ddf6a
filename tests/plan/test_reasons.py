"""Every reason is used by the code and expected by a test."""

import re
from pathlib import Path

from deadletter.core.reasons import Reason
from tests.bed import places

HERE = Path(__file__)


def read_sources(folder: str, *excluded: str) -> str:
    files = (places.REPOSITORY / folder).rglob("*.py")
    return "\n".join(file.read_text() for file in files if not {file.name, file.parent.name} & {*excluded})


def test_every_reason_is_expected_by_a_test() -> None:
    found = read_sources("tests", HERE.name, "docs", "demo", "bed")
    assert [one.name for one in Reason if not re.search(rf"""["'.]{one.name}\b""", found)] == []


def test_every_reason_is_used() -> None:
    found = read_sources("operator", "reasons.py")
    assert [one.name for one in Reason if not re.search(rf"\b{one.name}\b", found)] == []
