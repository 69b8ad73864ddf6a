"""Read the commands of the docs, and the output that the docs show, from the pages.

A `sh` block contains commands. In a `console` block `$ ` begins a command, and the lines below are its output. A
command continues after a backslash and up to the end of its here-document. Commands within a sentence are in backticks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bed import places

PAGES = sorted([*places.REPOSITORY.glob("*.md"), *places.REPOSITORY.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:kubectl|helm|make|docker|python -m deadletter|promtool) [^`\n]+(?:\n[^`\n]+)?)`")
HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")
PROMPT = "$ "


@dataclass(frozen=True)
class Command:
    """One command of a page, and the output that the page shows. None: the page shows none."""

    page: str
    text: str
    printed: str | None = None

    @property
    def without_comment(self) -> str:
        """Return the command without the comment after it."""
        return self.text.split("  #")[0].strip()


def in_blocks(page: str) -> list[Command]:
    """Return the commands in code blocks of a page, in order."""
    parsers = {"sh": _parse_shell, "console": _parse_console}
    blocks = BLOCK.findall((places.REPOSITORY / page).read_text())
    return [command for language, text in blocks if language in parsers for command in parsers[language](page, text)]


def in_sentences(page: str) -> list[Command]:
    """Return the commands within sentences of a page."""
    text = BLOCK.sub("", (places.REPOSITORY / page).read_text())
    return [Command(page, " ".join(found.split())) for found in INLINE.findall(text)]


def all_commands() -> list[Command]:
    """Return all commands of all pages except the changelog, which describes the past."""
    pages = [str(page.relative_to(places.REPOSITORY)) for page in PAGES if page.name != "CHANGELOG.md"]
    return [command for page in pages for command in (*in_blocks(page), *in_sentences(page))]


def _parse_shell(page: str, block: str) -> Iterator[Command]:
    lines = iter(block.splitlines())
    for line in lines:
        if line.strip() and not line.startswith("#"):
            yield Command(page, _join_lines(line, lines))


def _parse_console(page: str, block: str) -> Iterator[Command]:
    command, printed = "", list[str]()
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith(PROMPT):
            if command:
                yield Command(page, command, "\n".join(printed))
            command, printed = _join_lines(line.removeprefix(PROMPT), lines), []
        else:
            printed.append(line)
    if command:
        yield Command(page, command, "\n".join(printed))


def _join_lines(first: str, lines: Iterator[str]) -> str:
    joined = [first]
    while joined[-1].endswith("\\"):
        joined.append(next(lines))
    if here := HERE_DOCUMENT.search(" ".join(joined)):
        while joined[-1].strip() != here[1]:
            joined.append(next(lines))
    return "\n".join(joined)
