"""The hand-written reference pages name every expression, header, setting, ledger record and key."""

import re
from collections.abc import Callable
from dataclasses import fields
from inspect import signature

import pytest

from deadletter.brokers.redis import keys as names
from deadletter.core import cel
from deadletter.core.cel import Predicate
from deadletter.core.headers import OUR_HEADERS, SPOOFED_PREFIX
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger import records
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Skip, Span
from deadletter.settings import Settings
from deadletter.workers.delivery.http import request
from tests.bed import places
from tests.docs.commands import BLOCK

REFERENCE = places.REPOSITORY / "docs" / "reference"
EXPRESSIONS = (REFERENCE / "expressions.md").read_text()
DELIVERY = (REFERENCE / "delivery.md").read_text()
SAMPLES = [line for language, text in BLOCK.findall(EXPRESSIONS) if language == "cel" for line in text.splitlines()]


def first_cells(page: str) -> set[str]:
    """Return the names in backticks in the first column of every table."""
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_name_of_an_expression_is_explained() -> None:
    assert {name.split(".")[0] for name in first_cells(EXPRESSIONS)} == set(cel._VARIABLES)


@pytest.mark.parametrize("name", sorted(first_cells(EXPRESSIONS)))
def test_every_explained_name_is_one_that_cel_takes(name: str) -> None:
    Predicate(f"{name} == {name}")


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_sample_compiles(sample: str) -> None:
    Predicate(sample)


def test_every_header_of_a_request_is_explained() -> None:
    named = set(re.findall(r"`([A-Z][\w-]+)[:`]", request.__doc__ or ""))
    assert len(named) > 6
    assert {name for name in named if f"`{name}" not in DELIVERY} == set()


def test_every_header_of_a_letter_is_explained() -> None:
    assert {name for name in first_cells(DELIVERY) if name.startswith("dlq-")} == set(OUR_HEADERS)
    assert f"`{SPOOFED_PREFIX}dlq-" in DELIVERY


def test_every_setting_is_explained() -> None:
    page = (REFERENCE / "settings.md").read_text()
    assert first_cells(page) == {f"DLQ_{name.upper()}" for name in Settings.model_fields}
    for field in Settings.model_fields.values():
        assert f"| {field.description} |" in page


def section(page: str, title: str) -> str:
    """Return the text under one heading of a page."""
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_record_of_the_ledger_is_explained() -> None:
    page = (REFERENCE / "ledger.md").read_text()
    assert first_cells(section(page, "On Kafka")) == set(records._KINDS)
    for kind, parts in records._KINDS.items():
        (key,) = re.findall(rf"^\| `{kind}` \| `([^`]+)` \|", page, re.MULTILINE)
        assert len(key.split("/")) == parts
    assert first_cells(section(page, "Reasons of settlement")) == set(SettledAs)
    assert first_cells(section(page, "Tally")) == {field.name for field in fields(PartitionProgress)}
    assert first_cells(section(page, "Heartbeat")) == {field.name for field in fields(WorkerStatus)}
    assert {name for name in (*Skip, *(field.name for field in fields(Span))) if f"`{name}`" not in page} == set()


def shape_of(make: Callable[..., str]) -> str:
    """Return the key with the names of its parts and without a hash tag, as the page shows it."""
    return re.sub("[{}]", "", make(*(f"<{part}>" for part in signature(make).parameters)))


def test_every_key_next_to_a_box_on_redis_is_explained() -> None:
    keys = first_cells(section((REFERENCE / "ledger.md").read_text(), "On Redis"))
    made = {shape_of(make) for name, make in vars(names).items() if callable(make) and name != "sibling_key"}
    of_both = {"<source>.<group>.published", "<retry>.published"}
    assert keys == made - {"<box>.<group>.published"} | of_both
