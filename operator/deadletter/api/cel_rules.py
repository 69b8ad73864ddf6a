"""Validation rules across fields, as CEL for the API server and as the same check in Python."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CelRule:
    """One entry of `x-kubernetes-validations` and the same check in Python.

    `is_met` is None if the rule compares with the old object, which only the API server has.
    """

    cel: str
    message: str
    is_met: Callable[[Any], bool] | None = None
    field: str = ""
    is_for_new: bool = False  # only the API server checks it, when an object is created: stored ones may break it

    def as_schema(self) -> dict[str, Any]:
        """Return the rule as an entry of `x-kubernetes-validations`."""
        entry: dict[str, Any] = {"rule": self.cel, "message": self.message}
        if self.is_for_new:
            entry |= {"rule": f"oldSelf.hasValue() || ({self.cel})", "optionalOldSelf": True}
        return entry | ({"fieldPath": f".{self.field}"} if self.field else {})


def immutable(field: str, advice: str) -> CelRule:
    """Forbid to add, remove or change a field; the rule is on the parent, which also sees additions and removals."""
    cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} is immutable: {advice}", field=field)


def positive_duration(field: str, python_name: str) -> CelRule:
    """Require a duration to be longer than zero, if it is set."""
    from deadletter.core import durations

    def is_met(model: Any) -> bool:
        text = getattr(model, python_name)
        return text is None or durations.parse(text) > 0

    cel = f"!has(self.{field}) || duration(self.{field}) > duration('0s')"
    return CelRule(cel, f"{field} must be longer than 0s", is_met, field)


def count_set(model: Any, *names: str) -> int:
    """Return how many of these optional fields are set."""
    return sum(getattr(model, name) is not None for name in names)
