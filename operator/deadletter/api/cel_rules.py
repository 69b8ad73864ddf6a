"""Rules across fields: one sentence, judged here and by the API server alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CelRule:
    """One objection: a line of `x-kubernetes-validations`, and the same judgement in Python.

    `holds` is None where the rule compares with the old object, which only the API server has.
    """

    cel: str
    message: str
    is_met: Callable[[Any], bool] | None = None
    field: str = ""

    def as_schema(self) -> dict[str, str]:
        """The line as the CRD holds it."""
        line = {"rule": self.cel, "message": self.message}
        return line | ({"fieldPath": f".{self.field}"} if self.field else {})


def immutable(field: str, advice: str) -> CelRule:
    """A field that is neither added, removed nor changed; stands on the parent, for only it sees all three."""
    cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} is immutable: {advice}", field=field)


def positive_duration(field: str, python_name: str) -> CelRule:
    """A duration that must not be zero."""
    from deadletter.core import durations

    def holds(model: Any) -> bool:
        text = getattr(model, python_name)
        return text is None or durations.parse(text) > 0

    cel = f"!has(self.{field}) || duration(self.{field}) > duration('0s')"
    return CelRule(cel, f"{field} must be longer than 0s", holds, field)


def count_set(model: Any, *names: str) -> int:
    """How many of these optional fields are set."""
    return sum(getattr(model, name) is not None for name in names)
