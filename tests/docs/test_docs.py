"""Links of the docs lead somewhere, manifests are accepted, and named files and commands exist."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core.reasons import Reason
from tests.bed import image, places
from tests.docs.commands import BLOCK, PAGES

LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")
FILE = re.compile(r"(?<!/)\b(?:examples|charts|tests|docs|bench)/[\w./-]+\w")
# Reasons that ask a user for nothing: all is well, in progress, or why a message was buried.
NO_ACTION = {
    "Reconciled", "Adopted", "AllArchived", "AllDiscarded", "AllFound", "AllReplayed", "AsExpected", "BoxesFound",
    "CourierAvailable", "DryRunFinished", "NoCourierNeeded", "Started", "Freezing", "Running", "Verifying", "Waiting",
    "AttemptsExhausted", "Refused", "RetryLater", "RuleMatched", "ServiceAsked",
}  # fmt: skip
LINKED = [*PAGES, *places.REPOSITORY.glob("bench/results/*.md"), *places.REPOSITORY.glob("charts/*/README.md")]
TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
# Pages for people who change the code; paths are relative to the repository or to the package.
ABOUT_CODE = [places.REPOSITORY / "CONTRIBUTING.md", *places.REPOSITORY.glob("docs/design/*.md")]
MODULE = re.compile(r"(?<![\w/.<>-])(?:\w+/)*\w+\.py\b")
FOLDER = re.compile(r"`((?:\w+/)+)`")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as a forge computes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found, text in BLOCK.findall(page.read_text()):
            if found == language:
                yield page.name, text


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(places.REPOSITORY)))
def test_every_link_and_every_named_file_exists(page: Path) -> None:
    text = page.read_text()
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), f"{page.name}: {link}"
    for link, anchor in ANCHOR.findall(text):
        assert anchor in headings((page.parent / link) if link else page), f"{page.name}: {link}#{anchor}"
    for file in FILE.findall(text):
        assert (places.REPOSITORY / file).exists(), f"{page.name}: {file}"


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    roots = (places.REPOSITORY, places.REPOSITORY / "operator" / "deadletter")
    named = [*MODULE.findall(text), *FOLDER.findall(text)]
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_contributors_read_the_layers_that_lint_enforces() -> None:
    contracts = tomllib.loads((places.REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    enforced = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    block = (places.REPOSITORY / "CONTRIBUTING.md").read_text().split("## Layers\n\n```\n")[1].split("```")[0]
    stated = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    assert stated == [layer.replace("deadletter.", "") for layer in enforced]


def test_each_flow_states_its_number_of_files() -> None:
    page = (places.REPOSITORY / "docs" / "design" / "0000-overview.md").read_text()
    flows = re.findall(r"^## Flow \d.+?\n(\d+) files\.\n\n```\n(.+?)```", page, re.MULTILINE | re.DOTALL)
    assert len(flows) == 3
    assert [int(stated) for stated, _ in flows] == [len(set(MODULE.findall(files))) for _, files in flows]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(places.REPOSITORY)))
def test_every_page_links_the_glossary(page: Path) -> None:
    assert page.name == "glossary.md" or "glossary.md" in {Path(link).name for link in LINK.findall(page.read_text())}


def test_every_missed_benchmark_is_linked_to_its_reason() -> None:
    results = places.REPOSITORY / "bench" / "results"
    found = json.loads((results / "table.json").read_text())["results"]
    missed = {row["bench"] for rows in found.values() for row in rows if not row["met"]}
    linked = set(re.findall(r"\[why\]\(README\.md#([\w-]+)\)", (results / "table.md").read_text()))
    assert missed == linked
    assert linked <= headings(results / "README.md")


def test_every_make_target_the_docs_name_exists() -> None:
    known = set(re.findall(r"^([a-z][a-z%-]*):", (places.REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        quoted = re.findall(r"`([^`\n]*)`", page.read_text()) + [text for _, text in BLOCK.findall(page.read_text())]
        for target in TARGET.findall("\n".join(quoted)):
            assert target in known or f"{target.split('-')[0]}-%" in known, f"{page.name}: make {target}"


@pytest.mark.parametrize(("page", "text"), list(blocks("yaml")))
def test_every_manifest_in_the_docs_is_one_the_models_take(page: str, text: str) -> None:
    kinds = {kind.__name__: kind for kind in (BrokerConnection, RetryPolicy, DeadLetterQueue, Replay)}
    for manifest in yaml.safe_load_all(text):
        if isinstance(manifest, dict) and manifest.get("kind") in kinds:
            kinds[manifest["kind"]].from_body(manifest)


def test_every_reason_that_asks_for_something_is_in_the_troubleshooting() -> None:
    page = (places.REPOSITORY / "docs" / "operations" / "troubleshoot.md").read_text()
    missing = [reason for reason in Reason if reason not in NO_ACTION and not re.search(rf"\b{reason}\b", page)]
    assert missing == []
    rows = re.findall(r"^\| ([A-Z][A-Za-z, ]+) \|", page, re.MULTILINE)
    assert {word for row in rows for word in row.split(", ")} <= {str(reason) for reason in Reason}


def test_the_pictures_of_the_readme_are_small() -> None:
    for picture in (places.REPOSITORY / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 100 * 1024, picture.name
        assert picture.name in (places.REPOSITORY / "README.md").read_text()


def test_the_readme_names_the_version_of_the_project() -> None:
    assert image.name() in (places.REPOSITORY / "README.md").read_text()
