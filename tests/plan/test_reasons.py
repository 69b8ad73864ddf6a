"""Every reason is given by somebody and expected by a test."""

import re
from pathlib import Path

from deadletter.core.reasons import Reason
from tests.bed import places

HERE = Path(__file__)


def texts(folder: str, *but: str) -> str:
    files = (places.REPOSITORY / folder).rglob("*.py")
    return "\n".join(file.read_text() for file in files if not {file.name, file.parent.name} & {*but})


def test_every_reason_is_reached_by_a_test() -> None:
    found = texts("tests", HERE.name, "docs", "demo", "bed")
    assert [one.name for one in Reason if not re.search(rf"""["'.]{one.name}\b""", found)] == []


def test_every_reason_is_given_by_somebody() -> None:
    found = texts("operator", "reasons.py")
    assert [one.name for one in Reason if not re.search(rf"\b{one.name}\b", found)] == []
