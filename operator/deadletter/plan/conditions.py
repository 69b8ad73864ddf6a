"""Build conditions; the transition time changes only when the status changes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from deadletter.api.custom_resource import Condition
from deadletter.core import times
from deadletter.core.condition_types import EXPECTED_STATUS
from deadletter.core.reasons import Reason

ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition without its transition time."""

    type: str
    status: ConditionStatus
    reason: Reason
    message: str = ""


def condition(kind: str, holds: bool | None, reason: Reason, message: str = "") -> ConditionUpdate:
    """Return a condition of this type; `holds` None means Unknown.

    A condition that is not as expected always has a message: without a given one, the meaning of its reason.
    """
    status: ConditionStatus = "Unknown" if holds is None else "True" if holds else "False"
    if not message.strip() and status != EXPECTED_STATUS[kind]:
        message = reason.meaning
    return ConditionUpdate(kind, status, reason, message[:MAX_MESSAGE_CHARACTERS])


def merge_conditions(
    old: Iterable[Condition], updates: Iterable[ConditionUpdate], generation: int, now: int
) -> tuple[Condition, ...]:
    """Return the conditions after these updates, in the order of the updates."""
    before = {one.type: one for one in old}
    return tuple(_merge_one(before.get(update.type), update, generation, now) for update in updates)


def _merge_one(old: Condition | None, update: ConditionUpdate, generation: int, now: int) -> Condition:
    unchanged = old is not None and old.status == update.status
    return Condition(
        type=update.type,
        status=update.status,
        reason=update.reason.value,
        message=update.message,
        last_transition_time=old.last_transition_time if old and unchanged else times.render_second(now),
        observed_generation=generation,
    )


def changed_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> list[Condition]:
    """Return the new conditions whose status or reason differs from before; each is worth an Event."""
    before = {one.type: (one.status, one.reason) for one in old}
    return [one for one in new if before.get(one.type) != (one.status, one.reason)]
