"""Record the output of `kubectl get dlq -w`."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from deadletter.core.reasons import Reason
from tests.bed import binaries
from tests.bed.control import ApiServer
from tests.controller.operator_process import wait_until

Columns = tuple[str, ...]
SHOWN_VALUES = frozenset({"True", "False", "Unknown", *Reason.__members__})


class KubectlWatch:
    """The lines that a watch has printed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def rows(self) -> list[Columns]:
        """Return READY, and REASON if there is one, of each line; equal neighbours count once."""
        lines = [
            tuple(word for word in line.split() if word in SHOWN_VALUES) for line in self._file.read_text().splitlines()
        ]
        return [words for words, _ in groupby(line for line in lines if line)]

    def wait_for(self, *story: Columns) -> None:
        """Wait until these rows were printed in this order; others may come between them."""
        wait_until(f"{story}; seen {self.rows()}", lambda: self._contains(story))

    def _contains(self, story: tuple[Columns, ...]) -> bool:
        seen = iter(self.rows())
        return all(words in seen for words in story)


@contextmanager
def watch_queues(server: ApiServer, namespace: str, file: Path, *more: str) -> Iterator[KubectlWatch]:
    """Run `kubectl get dlq -w` during the block."""
    command = [str(binaries.path("kubectl")), f"--kubeconfig={server.kubeconfig}", "-n", namespace]
    with file.open("wb") as out:
        child = subprocess.Popen([*command, "get", "dlq", "-w", *more], stdout=out, stderr=subprocess.DEVNULL)
    try:
        yield KubectlWatch(file)
    finally:
        child.kill()
        child.wait()
