"""What a page prints and what was really printed, compared without what differs from run to run."""

import re

from tests.bed import places
from tests.docs.commands import BLOCK

DIFFERS = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"\b(?=\d)(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?<=[dhms])\b", "<age>"),
    (r"\b\d+-\d+\b", "<id>"),
    (r"\b[0-9a-f]{8}\b", "<group>"),
    (r"[ \t]+", " "),
)


def plain(text: str) -> list[str]:
    """The lines of a text, with times, ages, ids and widths taken out."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    for pattern, word in DIFFERS:
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


def demo() -> str:
    """What the README says that `make demo` tells."""
    text = (places.REPOSITORY / "README.md").read_text()
    return next(block for _, block in BLOCK.findall(text) if block.lstrip().startswith("2. A shop"))


def assert_told(said: str, namespace: str) -> None:
    """The README's sample of the demo is what was told."""
    assert plain(said.replace(namespace, "shop-kafka")) == plain(demo())
