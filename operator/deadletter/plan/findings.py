"""A finding is one problem with an object; chains of checks return findings in the order users should read them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from deadletter.core.condition_types import REFERENCES_RESOLVED
from deadletter.core.reasons import Reason

T = TypeVar("T")
F = TypeVar("F")
Check = Callable[[T, F], "Finding | None"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, with a message that says what is wrong and what to do."""

    reason: Reason
    message: str
    is_transient: bool = True  # it may go away without a change of this object, so it is checked again
    condition: str = REFERENCES_RESOLVED  # the condition that becomes False; Stalled: only Ready and Stalled report it
    is_missing_reference: bool = False  # a named object does not exist; the webhook then only warns, unless configured


def first_finding(checks: Iterable[Check[T, F]], subject: T, facts: F) -> Finding | None:
    """Run the checks in order and return the first problem."""
    for check in checks:
        found = check(subject, facts)
        if found is not None:
            return found
    return None


def all_findings(checks: Iterable[Check[T, F]], subject: T, facts: F) -> list[Finding]:
    """Run all checks and return every problem, in order."""
    return [found for check in checks if (found := check(subject, facts)) is not None]
