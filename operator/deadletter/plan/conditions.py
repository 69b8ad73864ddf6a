"""Conditions: what is said about an object; a clock moves only when its status turns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from deadletter.api.kinds import Condition
from deadletter.core import times
from deadletter.core.reasons import Reason

ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition without its clock."""

    type: str
    status: ConditionStatus
    reason: Reason
    message: str = ""


def condition(kind: str, holds: bool | None, reason: Reason, message: str = "") -> ConditionUpdate:
    """A saying of True, False, or (None) Unknown."""
    state: ConditionStatus = "Unknown" if holds is None else "True" if holds else "False"
    return ConditionUpdate(kind, state, reason, message[:MAX_MESSAGE_CHARACTERS])


def merge_conditions(old: Iterable[Condition], said: Iterable[ConditionUpdate], generation: int, now: int) -> tuple[Condition, ...]:
    """The conditions after these sayings, in the order of the sayings."""
    before = {one.type: one for one in old}
    return tuple(_turned(before.get(one.type), one, generation, now) for one in said)


def _turned(old: Condition | None, said: ConditionUpdate, generation: int, now: int) -> Condition:
    clock = old.last_transition_time if old and old.status == said.status else times.render(now // 1000 * 1000)
    return Condition(
        type=said.type,
        status=said.status,
        reason=said.reason.value,
        message=said.message,
        last_transition_time=clock,
        observed_generation=generation,
    )


def changed_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> list[Condition]:
    """Those whose status or reason is another than before: worth an Event."""
    before = {one.type: (one.status, one.reason) for one in old}
    return [one for one in new if before.get(one.type) != (one.status, one.reason)]
