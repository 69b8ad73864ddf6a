"""The terminal of the demo: run kubectl, print its output, wait for conditions."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, TextIO

from tests.bed.node import Cluster
from tests.bed.processes import BedError

MANIFESTS = Path(__file__).with_name("manifests")
TIMEOUT_S = 180
BAR_WIDTH = 24


@dataclass
class Stage:
    """One namespace of a cluster, and the output of the demo."""

    cluster: Cluster
    namespace: str
    substitutions: dict[str, str] = field(default_factory=dict)
    out: TextIO = field(default_factory=lambda: sys.stdout)

    def print(self, text: str) -> None:
        """Print a line of the demo."""
        print(text, file=self.out, flush=True)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace and return its output."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def show(self, *arguments: str) -> str:
        """Run kubectl and print both the command and its output."""
        self.print(f"    $ kubectl {shlex.join(arguments)}")
        output = self.kubectl(*arguments).rstrip()
        self.print("\n".join(f"    {line}".rstrip() for line in output.splitlines()))
        return output

    def apply(self, name: str) -> None:
        """Apply a manifest of the demo with the address of the broker and the image filled in."""
        text = Template((MANIFESTS / f"{name}.yaml").read_text()).safe_substitute(self.substitutions)
        self.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def get(self, what: str) -> dict[str, Any]:
        """Return an object."""
        return dict(json.loads(self.kubectl("get", what, "-o", "json")))

    def condition(self, what: str, kind: str) -> dict[str, Any]:
        """Return one condition of an object; empty before its first reconcile."""
        conditions = self.get(what).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def until(
        self, what: str, holds: Callable[[], bool], timeout_s: float = TIMEOUT_S, done: Callable[[], str] | None = None
    ) -> None:
        """Wait until the condition holds; a terminal shows what it waits for and how much is done."""
        begun, deadline = time.monotonic(), time.monotonic() + timeout_s
        while not self._holds(holds):
            if time.monotonic() > deadline:
                raise BedError(f"Waited {timeout_s:.0f} s without success for {what}.")
            self._show_progress(f"{done() if done else f'waiting for {what}'}, {time.monotonic() - begun:.0f} s")
            time.sleep(0.5)
        self._show_progress("")

    def _holds(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except BedError:  # the object does not exist or the API server does not answer yet
            return False

    def _show_progress(self, text: str) -> None:
        if self.out.isatty():
            self.out.write(f"\r\033[K    {text}" if text else "\r\033[K")
            self.out.flush()


def bar(done: int, whole: int) -> str:
    """Return a progress bar."""
    filled = BAR_WIDTH * done // whole if whole else BAR_WIDTH
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done} of {whole}"
