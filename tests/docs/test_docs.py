"""The docs are true: links lead somewhere, manifests are accepted, commands exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deadletter.api.brokerconnections import BrokerConnection
from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retrypolicies import RetryPolicy
from tests.bed import places

PAGES = sorted([*places.REPOSITORY.glob("*.md"), *places.REPOSITORY.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
FILE = re.compile(r"\b(?:examples|charts|tests|docs|bench)/[\w./-]+\w")
TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found, text in BLOCK.findall(page.read_text()):
            if found == language:
                yield page.name, text


def commands() -> list[str]:
    lines = [line for _, text in blocks("sh") for line in text.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines if line.strip()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(places.REPOSITORY)))
def test_every_link_and_every_named_file_exists(page: Path) -> None:
    text = page.read_text()
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), f"{page.name}: {link}"
    for file in FILE.findall(text):
        assert (places.REPOSITORY / file).exists(), f"{page.name}: {file}"


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


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("python -m deadletter")])
def test_every_door_the_docs_open_is_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from deadletter.__main__ import main

    assert main(shlex.split(command)[3:]) == 0
    assert capsys.readouterr().out
