"""Select the letters that a Replay takes."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from deadletter.core.cel import Predicate
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter, failure_time


@dataclass(frozen=True)
class Selection:
    """Conditions on the letters of a Replay: all that are set must hold. The caller enforces `limit`."""

    where: str | None = None
    ids: Collection[str] = ()
    fingerprint: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None

    @cached_property
    def predicate(self) -> Predicate | None:
        """The compiled `where` expression."""
        return Predicate.cached(self.where) if self.where else None

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.ids)

    @property
    def matches_all(self) -> bool:
        """True if every letter is selected."""
        return self.needs_only_summary and not self.ids and not self.fingerprint

    @property
    def needs_only_summary(self) -> bool:
        """True if a summary of the letter is enough to decide whether it is selected."""
        return self.where is None and self.since is None and self.until is None

    def matches(self, letter: Letter, now: int) -> bool | None:
        """True if the letter is selected; None if `where` could not be evaluated."""
        if self._ids and letter.place.id not in self._ids:
            return False
        failed = failure_time(letter)
        if (self.since is not None and failed < self.since) or (self.until is not None and failed >= self.until):
            return False
        if self.fingerprint and fingerprint(letter.envelope.failure) != self.fingerprint:
            return False
        return self.predicate.matches(letter, now) if self.predicate else True
