"""Log what became of failed messages: one line each, and above ten in a second one line per kind of event.

A line names id, attempts, error type, reason and failure group of a message, never its payload, key or headers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from deadletter import logs
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter

MAX_LINES_PER_SECOND = 10
MAX_NAMED_CAUSES = 5
BURIED, DISCARDED, PARKED = "message buried", "message discarded", "message parked"


class DispositionLog:
    """Writes the lines of one subscription. `schedule` runs a function after a number of seconds."""

    def __init__(self, schedule: Callable[[float, Callable[[], None]], Any] | None = None) -> None:
        self._schedule = schedule or asyncio.get_running_loop().call_later
        self._log = logs.get(__name__)
        self._lines = 0
        self._unlogged: dict[str, Counter[tuple[str, str]]] = {}

    def record(self, event: str, letter: Letter, reason: str) -> None:
        """Log what has happened to a message, or count it for the summary of this second."""
        if not self._lines:
            self._schedule(1.0, self.write_summary)
        failure = letter.envelope.failure
        if self._lines >= MAX_LINES_PER_SECOND:
            self._unlogged.setdefault(event, Counter())[failure.type, reason] += 1
            return
        self._lines += 1
        self._write(event)(
            event,
            id=letter.envelope.id,
            attempts=letter.envelope.attempts,
            error_type=failure.type,
            reason=reason,
            failure_group=fingerprint(failure),
        )

    def write_summary(self) -> None:
        """Log how many messages of this second have no line of their own, with the most frequent causes."""
        for event, causes in self._unlogged.items():
            named = [
                {"error_type": kind, "reason": reason, "messages": count}
                for (kind, reason), count in causes.most_common(MAX_NAMED_CAUSES)
            ]
            self._write(event)(f"{event}, summary of a second", messages=causes.total(), causes=named)
        self._unlogged.clear()
        self._lines = 0

    def _write(self, event: str) -> Callable[..., Any]:
        write: Callable[..., Any] = self._log.warning if event == DISCARDED else self._log.info
        return write
