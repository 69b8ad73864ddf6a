"""Select the letters that a Replay takes."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from deadletter.core.cel import Predicate
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter, failure_time


@dataclass(frozen=True)
class Selection:
    """Which letters a Replay takes: every part that is set must hold. `limit` is kept by the caller."""

    where: str | None = None
    ids: Collection[str] = ()
    fingerprint: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None

    @cached_property
    def predicate(self) -> Predicate | None:
        """The compiled `where`."""
        return Predicate.cached(self.where) if self.where else None

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.ids)

    @property
    def matches_all(self) -> bool:
        """Is every letter taken?"""
        return self.needs_only_summary and not self.ids and not self.fingerprint

    @property
    def needs_only_summary(self) -> bool:
        """Does a glance at the letter suffice to judge it?"""
        return self.where is None and self.since is None and self.until is None

    def matches(self, letter: Letter, now: int) -> bool | None:
        """Is it taken? None: `where` could not be evaluated."""
        if self._ids and letter.place.id not in self._ids:
            return False
        failed = failure_time(letter)
        if (self.since is not None and failed < self.since) or (self.until is not None and failed >= self.until):
            return False
        if self.fingerprint and fingerprint(letter.envelope.failure) != self.fingerprint:
            return False
        return self.predicate.matches(letter, now) if self.predicate else True
