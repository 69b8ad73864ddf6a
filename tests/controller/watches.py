"""What a person sees who only runs `kubectl get dlq -w`."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from deadletter.core.reasons import Reason
from tests.bed import binaries
from tests.bed.control import ApiServer
from tests.controller.operators import until

Words = tuple[str, ...]
WORDS = frozenset({"True", "False", "Unknown", *Reason.__members__})


class Transcript:
    """The lines of a watch."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def words(self) -> list[Words]:
        """What each line says of READY, and of REASON if there is one; a line that repeats its neighbour is none."""
        lines = [tuple(word for word in line.split() if word in WORDS) for line in self._file.read_text().splitlines()]
        return [words for words, _ in groupby(line for line in lines if line)]

    def tells(self, *story: Words) -> None:
        """Wait until these lines were seen, in this order; others may lie between them."""
        until(f"{story}; seen {self.words()}", lambda: self._holds(story))

    def _holds(self, story: tuple[Words, ...]) -> bool:
        seen = iter(self.words())
        return all(words in seen for words in story)


@contextmanager
def watching(server: ApiServer, namespace: str, file: Path, *more: str) -> Iterator[Transcript]:
    """`kubectl get dlq -w` while the block runs."""
    command = [str(binaries.path("kubectl")), f"--kubeconfig={server.kubeconfig}", "-n", namespace]
    with file.open("wb") as out:
        child = subprocess.Popen([*command, "get", "dlq", "-w", *more], stdout=out, stderr=subprocess.DEVNULL)
    try:
        yield Transcript(file)
    finally:
        child.kill()
        child.wait()
