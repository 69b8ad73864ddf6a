"""The commands of the docs and what the docs say they print, read from the pages themselves.

A `sh` block holds commands; in a `console` block `$ ` begins a command and what follows is its output. A command goes
on over a backslash and up to the end of its here-document. Commands within a sentence stand in backticks.
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
    """One command of a page, and what the page says it prints; None: the page does not say."""

    page: str
    text: str
    printed: str | None = None

    @property
    def words(self) -> str:
        """The command without the comment behind it."""
        return self.text.split("  #")[0].strip()


def in_blocks(page: str) -> list[Command]:
    """The commands of a page that a reader copies, in his order."""
    readers = {"sh": _plain, "console": _prompted}
    blocks = BLOCK.findall((places.REPOSITORY / page).read_text())
    return [command for language, text in blocks if language in readers for command in readers[language](page, text)]


def in_sentences(page: str) -> list[Command]:
    """The commands that a page only mentions."""
    text = BLOCK.sub("", (places.REPOSITORY / page).read_text())
    return [Command(page, " ".join(found.split())) for found in INLINE.findall(text)]


def every() -> list[Command]:
    """All commands of all pages but the changelog, which tells what was."""
    pages = [str(page.relative_to(places.REPOSITORY)) for page in PAGES if page.name != "CHANGELOG.md"]
    return [command for page in pages for command in (*in_blocks(page), *in_sentences(page))]


def _plain(page: str, block: str) -> Iterator[Command]:
    lines = iter(block.splitlines())
    for line in lines:
        if line.strip() and not line.startswith("#"):
            yield Command(page, _whole(line, lines))


def _prompted(page: str, block: str) -> Iterator[Command]:
    command, printed = "", list[str]()
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith(PROMPT):
            if command:
                yield Command(page, command, "\n".join(printed))
            command, printed = _whole(line.removeprefix(PROMPT), lines), []
        else:
            printed.append(line)
    if command:
        yield Command(page, command, "\n".join(printed))


def _whole(first: str, lines: Iterator[str]) -> str:
    taken = [first]
    while taken[-1].endswith("\\"):
        taken.append(next(lines))
    if here := HERE_DOCUMENT.search(" ".join(taken)):
        while taken[-1].strip() != here[1]:
            taken.append(next(lines))
    return "\n".join(taken)
