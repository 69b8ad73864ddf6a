"""Conditions: what is said about an object; a clock moves only when its status turns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from deadletter.api.kinds import Condition
from deadletter.core import times
from deadletter.core.reasons import Reason

State = Literal["True", "False", "Unknown"]
LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Saying:
    """A condition without its clock."""

    type: str
    status: State
    reason: Reason
    message: str = ""


def claim(kind: str, holds: bool | None, reason: Reason, message: str = "") -> Saying:
    """A saying of True, False, or (None) Unknown."""
    state: State = "Unknown" if holds is None else "True" if holds else "False"
    return Saying(kind, state, reason, message[:LONGEST])


def put(old: Iterable[Condition], said: Iterable[Saying], generation: int, now: int) -> tuple[Condition, ...]:
    """The conditions after these sayings, in the order of the sayings."""
    before = {one.type: one for one in old}
    return tuple(_turned(before.get(one.type), one, generation, now) for one in said)


def _turned(old: Condition | None, said: Saying, generation: int, now: int) -> Condition:
    clock = old.last_transition_time if old and old.status == said.status else times.render(now // 1000 * 1000)
    return Condition(
        type=said.type,
        status=said.status,
        reason=said.reason.value,
        message=said.message,
        last_transition_time=clock,
        observed_generation=generation,
    )


def turned(old: Iterable[Condition], new: Iterable[Condition]) -> list[Condition]:
    """Those whose status or reason is another than before: worth an Event."""
    before = {one.type: (one.status, one.reason) for one in old}
    return [one for one in new if before.get(one.type) != (one.status, one.reason)]
