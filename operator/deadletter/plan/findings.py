"""A finding is one objection; a chain of checks gives the first one, in the order users should hear them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from deadletter.core.reasons import Reason

REFERENCES = "ReferencesResolved"
BOXES = "BoxesReady"
COURIER = "CourierAvailable"
SPEC = "Stalled"

Thing = TypeVar("Thing")
Facts = TypeVar("Facts")
Check = Callable[[Thing, Facts], "Finding | None"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One objection: why, in a sentence, whether time heals it, and which condition it speaks in."""

    reason: Reason
    message: str
    is_transient: bool = True
    condition: str = REFERENCES
    is_missing_reference: bool = False  # something named does not exist: admission warns, and refuses only when told to


def first_finding(checks: Iterable[Check[Thing, Facts]], thing: Thing, facts: Facts) -> Finding | None:
    """The first objection."""
    for check in checks:
        found = check(thing, facts)
        if found is not None:
            return found
    return None


def all_findings(checks: Iterable[Check[Thing, Facts]], thing: Thing, facts: Facts) -> list[Finding]:
    """All objections, in order."""
    return [found for check in checks if (found := check(thing, facts)) is not None]
