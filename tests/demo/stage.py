"""What a person does at the terminal: run kubectl, look, wait; and say what it is for."""

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
PATIENCE = 180
BAR = 24


@dataclass
class Stage:
    """One namespace of a cluster, and where the telling goes."""

    cluster: Cluster
    namespace: str
    words: dict[str, str] = field(default_factory=dict)
    out: TextIO = field(default_factory=lambda: sys.stdout)

    def say(self, text: str) -> None:
        """A line of the story."""
        print(text, file=self.out, flush=True)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run it in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, stdin=stdin)

    def show(self, *words: str) -> str:
        """Run it and show both the command and the answer."""
        self.say(f"    $ kubectl {shlex.join(words)}")
        answer = self.kubectl(*words).rstrip()
        self.say("\n".join(f"    {line}".rstrip() for line in answer.splitlines()))
        return answer

    def apply(self, name: str) -> None:
        """Apply one of the demo's manifests, with the broker's address and the image filled in."""
        text = Template((MANIFESTS / f"{name}.yaml").read_text()).safe_substitute(self.words)
        self.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def get(self, what: str) -> dict[str, Any]:
        """An object as it is."""
        return dict(json.loads(self.kubectl("get", what, "-o", "json")))

    def condition(self, what: str, kind: str) -> dict[str, Any]:
        """One condition of an object; empty before its first visit."""
        conditions = self.get(what).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def until(
        self, what: str, holds: Callable[[], bool], patience: float = PATIENCE, done: Callable[[], str] | None = None
    ) -> None:
        """Wait for something that will come; at a terminal a line shows what, since when, and how much is done."""
        begun, ending = time.monotonic(), time.monotonic() + patience
        while not self._held(holds):
            if time.monotonic() > ending:
                raise BedError(f"Waited {patience:.0f} s in vain: {what}.")
            self._passing(f"{done() if done else f'waiting for {what}'}, {time.monotonic() - begun:.0f} s")
            time.sleep(0.5)
        self._passing("")

    def _held(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except BedError:  # the object, or the API server, is not there yet
            return False

    def _passing(self, text: str) -> None:
        if self.out.isatty():
            self.out.write(f"\r\033[K    {text}" if text else "\r\033[K")
            self.out.flush()


def bar(done: int, whole: int) -> str:
    """How much of the whole is done, to be seen at a glance."""
    filled = BAR * done // whole if whole else BAR
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {done} of {whole}"
