"""Compare the output that a page shows with real output, without what differs from run to run."""

import re

from tests.bed import places
from tests.docs.commands import BLOCK

VARYING = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"\b(?=\d)(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?<=[dhms])\b", "<age>"),
    (r"\b\d+-\d+\b", "<id>"),
    (r"\b[0-9a-f]{8}\b", "<group>"),
    (r"[ \t]+", " "),
)


def normalise(text: str) -> list[str]:
    """Return the lines of a text with times, ages, ids and widths replaced."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    for pattern, word in VARYING:
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


def readme_demo() -> str:
    """Return the output of `make demo` as the README shows it."""
    text = (places.REPOSITORY / "README.md").read_text()
    return next(block for _, block in BLOCK.findall(text) if block.lstrip().startswith("2. A shop"))


def assert_matches_readme(output: str, namespace: str) -> None:
    """Assert that the README shows the output of the demo."""
    assert normalise(output.replace(namespace, "shop-kafka")) == normalise(readme_demo())
