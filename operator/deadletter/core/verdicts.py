"""What a policy says of a letter."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Retry:
    """Deliver again at `at` (milliseconds since the epoch)."""

    at: int


@dataclass(slots=True, frozen=True)
class Bury:
    """Lay it into the dead box, for this reason."""

    reason: str


@dataclass(slots=True, frozen=True)
class Discard:
    """Drop it, counted and warned, for this reason."""

    reason: str


Verdict = Retry | Bury | Discard
